"""Client of a Confluent schema registry, with the two calls of its REST API that records need.

Certificates of https are checked against the system's authorities; the calls are anonymous.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any, Final, Self
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from resolver.errors import InvalidArgument, KafkaUnavailable

__all__ = [
    "RegistryRefused",
    "RegistryUnavailable",
    "SchemaRegistry",
    "shown_url",
    "why_no_registry",
]

_JSON: Final = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_SECONDS: Final = 10.0
_MOST_BYTES: Final = 4 * 1024 * 1024
_PAUSE_SECONDS: Final = 0.5
_REFUSED_SECONDS: Final = 30.0
"""Time for which the registry is not queried again for an id that it refused."""
_MOST_TEXT: Final = 300
_EXPECTED: Final = "expected a URL such as http://host:8081"
_SERVER_ERROR: Final = 500
_TOO_MANY_REQUESTS: Final = 429


class RegistryUnavailable(KafkaUnavailable):
    """Error of a registry that does not answer, or answers with status 5xx or 429. A later request
    may succeed.
    """


class RegistryRefused(Exception):
    """Error of a registry that answers, but lacks or refuses a schema. Its message is one
    sentence.
    """


def why_no_registry(url: str) -> str:
    """Returns why a URL has not the form of a registry's; empty = it has."""
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return _EXPECTED
    if not is_whole or not url.isascii() or not url.isprintable() or " " in url:
        return _EXPECTED
    if parts.username is not None or parts.query or parts.fragment:
        return f"{_EXPECTED}, without a user, a password, ? and #"
    return ""


def shown_url(url: str) -> str:
    """Returns a URL for messages, with user and password replaced by an ellipsis, since logs keep
    messages.
    """
    return re.sub(r"^(\w+://)?.*@", r"\1…@", url, flags=re.DOTALL)


class _NoRedirects(HTTPRedirectHandler):
    """Handler that follows no redirect, so that a redirect is an error."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class SchemaRegistry:
    """Client of one registry. Thread-safe; received schemas are cached.

    Args:
        url: URL of the registry, http or https; ``why_no_registry`` checks its form.
        timeout_seconds: time limit to connect, for each wait for bytes, and for a whole body.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        reason = why_no_registry(url)
        if reason:
            raise InvalidArgument(f"schema registry: found {shown_url(url)!r}; {reason}")
        self.url: Final = url.rstrip("/")
        self._timeout: Final = timeout_seconds
        self._clock: Final = clock
        self._pause: Final = pause
        self._opener: Final = build_opener(_NoRedirects)
        self._lock: Final = threading.Lock()
        self._texts: Final[dict[int, str]] = {}
        self._refused: Final[dict[int, tuple[float, str]]] = {}

    @classmethod
    def at(cls, url: str) -> Self | None:
        """Returns the client of a registry; None if the URL is empty.

        Raises:
            InvalidArgument: the URL has not the form of a registry's.
        """
        return cls(url) if url else None

    def register(self, subject: str, schema: str) -> int:
        """Registers an Avro schema, unless it is registered; returns its id.

        Raises:
            RegistryUnavailable, RegistryRefused
        """
        path = f"/subjects/{quote(subject, safe='')}/versions"
        found = self._ask(path, {"schema": schema}).get("id")
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < 2**32:
            raise RegistryRefused(f"schema registry {self.url}: its answer has no id")
        return found

    def schema(self, schema_id: int) -> str:
        """Returns the text of a schema. After a failure the registry is queried once more.

        Raises:
            RegistryUnavailable, RegistryRefused
        """
        with self._lock:
            text = self._texts.get(schema_id)
            if text is not None:
                return text
            at, reason = self._refused.get(schema_id, (0.0, ""))
            if reason and self._clock() - at < _REFUSED_SECONDS:
                raise RegistryRefused(reason)
            try:
                text = self._texts[schema_id] = self._fetch(schema_id)
            except RegistryRefused as error:
                self._refused[schema_id] = self._clock(), str(error)
                raise
            return text

    def _fetch(self, schema_id: int) -> str:
        try:
            return self._fetch_once(schema_id)
        except (RegistryUnavailable, RegistryRefused):
            self._pause(_PAUSE_SECONDS)
            return self._fetch_once(schema_id)

    def _fetch_once(self, schema_id: int) -> str:
        found = self._ask(f"/schemas/ids/{schema_id}").get("schema")
        if not isinstance(found, str):
            raise RegistryRefused(f"schema registry {self.url}: its answer has no schema")
        return found

    def _ask(self, path: str, body: Any = None) -> dict[str, Any]:
        """Returns the JSON object that answers a POST of ``body``, or a GET without one."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": f"{_JSON}, application/json", "Content-Type": _JSON}
        request = Request(self.url + path, data, headers)  # noqa: S310 - http and https only
        try:
            with self._opener.open(request, timeout=self._timeout) as answer:
                text = self._read(answer)
        except HTTPError as error:
            with error:
                reason = f"{_reason_of(error)} (HTTP {error.code})"
            if error.code >= _SERVER_ERROR or error.code == _TOO_MANY_REQUESTS:
                raise RegistryUnavailable(f"schema registry {self.url}: {reason}") from None
            raise RegistryRefused(f"schema registry {self.url}: {reason}") from None
        except (OSError, HTTPException) as error:
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
            raise RegistryUnavailable(
                f"schema registry {self.url} does not answer: {reason}"
            ) from None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RegistryRefused(f"schema registry {self.url}: its answer is no JSON object")
        return found

    def _read(self, answer: Any) -> bytes:
        """Returns the whole body; the time limit also ends a body that arrives slowly."""
        until = self._clock() + self._timeout
        body = bytearray()
        while part := answer.read1(65_536):
            body += part
            if len(body) > _MOST_BYTES:
                raise RegistryRefused(
                    f"schema registry {self.url}: its answer has more than {_MOST_BYTES:,} bytes"
                )
            if self._clock() > until:
                raise TimeoutError(f"its answer took longer than {self._timeout:g} s")
        return bytes(body)


def _reason_of(error: HTTPError) -> str:
    """Returns the message in a registry's error response, printable and cut."""
    reason = str(error.reason)
    try:
        found = json.loads(error.read(65_536))
        if isinstance(found, dict) and isinstance(found.get("message"), str):
            reason = found["message"]
    except (OSError, HTTPException, ValueError, RecursionError):
        pass
    text = "".join(one if one.isprintable() else " " for one in reason)
    return text[:_MOST_TEXT]
