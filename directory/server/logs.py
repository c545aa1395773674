"""Log lines with their context, as text or as one JSON object each. Callers' texts cannot forge a
line, and passwords are redacted.
"""

from __future__ import annotations

import contextvars
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from directory.api.rpc.call_context import CURRENT
from resolver.printable import printable
from resolver.redaction import redacted

__all__ = [
    "FORMATS",
    "JsonFormatter",
    "LogFormatter",
    "TextFormatter",
    "cluster_log_context",
    "set_up",
    "with_log_context",
]

FORMATS: Final = ("text", "json")
_LONGEST: Final = 8_000
"""Most characters of one message."""

_CLUSTER: Final = contextvars.ContextVar("cluster", default="")


@contextmanager
def cluster_log_context(cluster: str) -> Iterator[None]:
    """Context manager that adds this cluster to the log lines of its block, and of functions that
    the block makes for other threads with ``with_log_context``.
    """
    token = _CLUSTER.set(cluster)
    try:
        yield
    finally:
        _CLUSTER.reset(token)


def with_log_context(work: Callable[[], None]) -> Callable[[], None]:
    """Returns a function for another thread that runs in the current cluster's log context."""
    context = contextvars.copy_context()

    def run() -> None:
        context.run(work)

    return run


class LogFormatter(logging.Formatter):
    """Base of the two formats: adds the context of a line."""

    def __init__(self) -> None:
        super().__init__()
        self.servers: dict[str, str] = {}
        """Server ids by cluster of this process; filled once they are known."""

    def about(self, record: logging.LogRecord) -> dict[str, Any]:
        """Returns the known context of a line: ``cluster``, ``server``, in a call ``request_id``,
        ``principal`` and ``peer``, and the line's own facts.
        """
        call = CURRENT.call
        cluster = (call.cluster if call is not None else "") or _CLUSTER.get()
        if not cluster and len(self.servers) == 1:
            (cluster,) = self.servers
        found: dict[str, Any] = {"cluster": cluster, "server": self.servers.get(cluster, "")}
        if call is not None:
            found["request_id"] = call.request_id
            found["principal"] = call.principal
            found["peer"] = call.peer
        facts: Mapping[str, Any] = getattr(record, "facts", {})
        return {key: value for key, value in {**facts, **found}.items() if value != ""}

    @staticmethod
    def message(record: logging.LogRecord) -> str:
        """Returns the line's message, of limited length, without passwords."""
        text = redacted(record.getMessage())
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

    def announcement(self, message: str) -> str:
        """Returns the line on stdout for a message such as that the server is serving; with the
        JSON format also an object, since many collectors read both streams.
        """
        return message

    def failure(self, message: str) -> str:
        """Returns the line on stderr with the reason why the server does not start or continue;
        with the JSON format also an object.
        """
        return f"error: {printable(redacted(message))}"

    @staticmethod
    def stack(record: logging.LogRecord) -> str:
        """Returns the stack of an error; empty without one."""
        if not record.exc_info or record.exc_info[1] is None:
            return ""
        return redacted("".join(traceback.format_exception(record.exc_info[1])).rstrip("\n"))


class TextFormatter(LogFormatter):
    """Format for people: ``2026-11-21T06:14:00.123Z INFO directory.calls [id]: message``. A line
    that does not begin with a time belongs to the line before.
    """

    def format(self, record: logging.LogRecord) -> str:
        about = self.about(record)
        head = f"{_time(record)} {record.levelname} {record.name}"
        if len(self.servers) > 1 and "cluster" in about:
            head += f" {about['cluster']}"
        if "request_id" in about:
            head += f" [{about['request_id']}]"
        lines = [f"{head}: {printable(self.message(record))}"]
        lines += [f"    {printable(line)}" for line in self.stack(record).splitlines()]
        return "\n".join(lines)


class JsonFormatter(LogFormatter):
    """Format for machines: one object per line, in ASCII."""

    def announcement(self, message: str) -> str:
        return self._line(logging.INFO, message)

    def failure(self, message: str) -> str:
        return self._line(logging.ERROR, message)

    def _line(self, level: int, message: str) -> str:
        return self.format(logging.LogRecord("directory", level, "", 0, "%s", (message,), None))

    def format(self, record: logging.LogRecord) -> str:
        line = {
            **self.about(record),
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": self.message(record),
        }
        if stack := self.stack(record):
            line["stack"] = stack
        first = ("time", "level", "logger", "message")
        ordered = {key: line[key] for key in (*first, *(key for key in line if key not in first))}
        return json.dumps(ordered, default=str)


def set_up(form: str, level: str, stream: TextIO | None = None) -> LogFormatter:
    """Sends all log lines of this process to a stream (stderr), in one of ``FORMATS``."""
    made = JsonFormatter() if form == "json" else TextFormatter()
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(made)
    logging.basicConfig(level=level, handlers=[handler])
    return made


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{int(record.msecs):03d}Z"
