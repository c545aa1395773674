"""Parses and checks ``host:port``, without a lookup of names.

Schemes, users, paths and directory names are refused, so that an endpoint never needs a directory
lookup and never names a socket file (R9, R10).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from resolver.errors import InvalidArgument
from resolver.printable import cut_name, cut_shown

__all__ = [
    "MAX_ENDPOINTS",
    "Endpoint",
    "is_host_name",
    "parse_endpoint",
    "parse_servers",
    "plain_endpoints",
]

MAX_ENDPOINTS: Final = 20
"""Most endpoints of one cluster that are used (CVE-2022-2795, CVE-2020-8616)."""
MAX_ENDPOINT_CHARACTERS: Final = 300
"""A host name has 253 characters at most (RFC 1035)."""

_NAME = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*"
    r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.?",
    re.ASCII | re.IGNORECASE,
)
_V4 = re.compile(r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}", re.ASCII)
# Texts that libraries parse as IPv4 addresses: 127.1, 0x7f.1, 017.1 (by the rule of the URL
# standard: the last label is a number).
_NUMBER = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)\.?", re.ASCII | re.IGNORECASE)

_LOCAL_NAMES: Final = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


class Endpoint(NamedTuple):
    """Address of a directory server. ``host`` is a name or an address without brackets."""

    host: str
    port: int
    is_address: bool

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if the text names this machine; no name is looked up."""
        if not self.is_address:
            return self.host.lower().rstrip(".") in _LOCAL_NAMES
        return self.host.startswith("127.") or self.host == "::1"

    @property
    def target(self) -> str:
        """Address for gRPC, with an explicit scheme."""
        if not self.is_address:
            return f"dns:///{self.host}:{self.port}"
        return f"ipv6:{self}" if ":" in self.host else f"ipv4:{self}"


def parse_endpoint(text: str) -> Endpoint:
    """Parses ``host:port``, ``1.2.3.4:port`` or ``[v6]:port``.

    Raises:
        InvalidArgument: names the value found, shortened, and the expected form.
    """
    if len(text) > MAX_ENDPOINT_CHARACTERS:
        raise _wrong(text, f"longer than {MAX_ENDPOINT_CHARACTERS} characters")
    host, colon, port = text.rpartition(":")
    if not colon or not port or port.endswith("]") or (":" in host and host[0] != "["):
        raise _wrong(text, "no port; expected host:port")
    if not port.isascii() or not port.isdigit():
        raise _wrong(text, "port is no number; expected host:port")
    number = int(port) if len(port) <= 5 else 0
    if not 0 < number < 65536:
        raise _wrong(text, "port outside 1 to 65535")
    if host.startswith("[") and host.endswith("]"):
        return Endpoint(_v6(text, host[1:-1]), number, is_address=True)
    if _V4.fullmatch(host):
        if any(int(part) > 255 or (part[0] == "0" and part != "0") for part in host.split(".")):
            raise _wrong(text, "no IPv4 address")
        return Endpoint(host, number, is_address=True)
    if not _NAME.fullmatch(host):
        raise _wrong(text, "neither a host name nor an address; expected host:port")
    if not is_host_name(host):
        raise _wrong(text, "a number in the place of a host name")
    return Endpoint(host.lower(), number, is_address=False)


def plain_endpoints(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the valid ``host:port`` texts in a list from another server, without duplicates; at
    most ``MAX_ENDPOINTS``.
    """
    found: dict[str, None] = {}
    for text in islice(texts, 4 * MAX_ENDPOINTS):
        try:
            parse_endpoint(text)
        except InvalidArgument:
            continue
        found[text] = None
    return tuple(found)[:MAX_ENDPOINTS]


def is_host_name(text: str) -> bool:
    """True if a text is a host name or a domain that no library parses as an address."""
    last = text.rstrip(".").rpartition(".")[2]
    return _NAME.fullmatch(text) is not None and _NUMBER.fullmatch(last) is None


def parse_servers(servers: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """Parses the start servers: a list, or one text with commas.

    Raises:
        InvalidArgument: a server is malformed, or there is none.
    """
    texts = servers.split(",") if isinstance(servers, str) else servers
    found = tuple(dict.fromkeys(parse_endpoint(text.strip()) for text in texts if text.strip()))
    if not found:
        raise InvalidArgument("servers: none given; expected at least one host:port")
    return found


def _v6(text: str, host: str) -> str:
    import ipaddress

    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        raise _wrong(text, "no IPv6 address") from None


def _wrong(text: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"endpoint {cut_shown(text, 60)}: {why}", endpoint=cut_name(text, 60))
