"""One log line for every call that ended; refuses to write what a caller sent without its quotes.

At DEBUG for those that went well, so that a busy server logs nothing of them; at INFO, with the
reason, for those that did not.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from resolver.errors import KdirError

__all__ = ["code_of", "is_success_logged", "log_failure", "log_success"]

_log = logging.getLogger("directory.calls")
_LONGEST: Final = 500
"""Characters of an error's message: it may quote a megabyte of path."""


def is_success_logged() -> bool:
    """True if calls that went well are to be told at all."""
    return _log.isEnabledFor(logging.DEBUG)


def log_success(method: str, request: Any, code: str, seconds: float) -> None:
    """It went well, or its caller ended it."""
    _log.debug(
        "%s %s in %.3f ms",
        method,
        code,
        seconds * 1000,
        extra={"facts": _facts(method, request, code, seconds)},
    )


def log_failure(method: str, request: Any, error: BaseException, seconds: float) -> None:
    """It ended with this error."""
    code = code_of(error)
    reason = error.reason if isinstance(error, KdirError) else "INTERNAL"
    # What else an error says is its own line's, with its stack.
    message = error.message if isinstance(error, KdirError) else "by a bug"
    _log.info(
        "%s %s %s in %.3f ms: %s",
        method,
        code,
        reason,
        seconds * 1000,
        message if len(message) <= _LONGEST else f"{message[:_LONGEST]}…",
        extra={"facts": {**_facts(method, request, code, seconds), "reason": reason}},
    )


def code_of(error: BaseException) -> str:
    """Returns the name of the gRPC code that an error becomes."""
    return error.code if isinstance(error, KdirError) else "INTERNAL"


def _facts(method: str, request: Any, code: str, seconds: float) -> dict[str, str | float]:
    facts: dict[str, str | float] = {
        "method": method, "code": code, "seconds": round(seconds, 6),
    }  # fmt: skip
    path = getattr(request, "path", "")
    if isinstance(path, str) and path:
        facts["path"] = path if len(path) <= _LONGEST else f"{path[:_LONGEST]}…"
    return facts
