"""Calls about a cluster: whom to ask, and, where the answer streams, how long to wait for more.

Refuses to know what the messages mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from resolver.cli.parser import Argument, Arguments
from resolver.cli.session import parse_path_argument
from resolver.errors import Cancelled, DeadlineExceeded

if TYPE_CHECKING:
    from resolver.cli.session import Session

__all__ = ["CLUSTER_PATH", "call_chosen_cluster", "chosen_cluster", "messages"]

CLUSTER_PATH: Final = Argument(
    "PATH", "a path of the cluster; default: that of the queried server", 0, completes="path"
)


def chosen_cluster(session: Session, arguments: Arguments) -> tuple[tuple[str, ...], str]:
    """Returns the servers to ask, and the cluster that is meant ("" = the asked one)."""
    path = arguments.one("PATH")
    if not path:
        return session.servers(), ""
    owner = session.resolver.owner_of(parse_path_argument(path).path)
    return owner.endpoints, owner.cluster_id


def call_chosen_cluster(
    session: Session, arguments: Arguments, method_name: str, request: Any
) -> Any:
    """Returns one call at a server of the cluster that is meant, which its request names."""
    path = arguments.one("PATH")
    if not path:
        return session.ask_any(method_name, request)
    where = parse_path_argument(path).path
    request.cluster = session.resolver.owner_of(where).cluster_id
    return session.resolver.call(where, method_name, request)


class _Patience:
    """Ends a stream that is silent for too long."""

    def __init__(self, stream: Any, seconds: float) -> None:
        self._stream = stream
        self._seconds = seconds
        self._timer: Any = None
        self.gave_up = False

    def wait(self) -> None:
        """From now on the next message is waited for."""
        import threading

        self.rest()
        self._timer = threading.Timer(self._seconds, self._give_up)
        self._timer.daemon = True
        self._timer.start()

    def rest(self) -> None:
        """Nothing is waited for."""
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        self.gave_up = True
        self._stream.cancel()


def messages(session: Session, server: str, method_name: str, request: Any) -> Iterator[Any]:
    """Yields what a server streams, of the cluster that the request names.

    Raises:
        KdirError: its error; DeadlineExceeded when it was silent for too long.
    """
    from resolver.transport import method

    stream = session.transport.stream(
        server, method(method_name), request, cluster_id=request.cluster
    )
    patience = _Patience(stream, session.timeout_seconds)
    patience.wait()
    try:
        for message in stream:
            patience.rest()
            yield message
            patience.wait()
    except Cancelled as error:
        if not patience.gave_up:
            raise
        raise DeadlineExceeded(
            f"no data from {server} for {session.timeout_seconds:g} s (--timeout)"
        ) from error
    finally:
        patience.rest()
        stream.cancel()
