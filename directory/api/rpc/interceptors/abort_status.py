"""Converts the error of a handler to one status with one ErrorInfo, without any of the stack."""

from __future__ import annotations

import logging
from typing import NoReturn

import grpc

from resolver.error_status import to_status
from resolver.errors import KdirError

__all__ = ["abort_with", "status_of"]

_log = logging.getLogger("directory.calls")


class _Status(grpc.Status):
    def __init__(
        self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, bytes], ...]
    ) -> None:
        self.code = code
        self.details = details
        self.trailing_metadata = metadata


def status_of(error: BaseException, request_id: str) -> grpc.Status:
    """Returns the status of an error, with the request id, which is also in the log."""
    if not isinstance(error, KdirError):
        _log.error("request %s failed by a bug", request_id, exc_info=error)
    return _Status(*to_status(error, request_id))


def abort_with(error: BaseException, context: grpc.ServicerContext, request_id: str) -> NoReturn:
    """Ends the call with the status of ``error``."""
    context.abort_with_status(status_of(error, request_id))
    raise AssertionError("abort_with_status returned")
