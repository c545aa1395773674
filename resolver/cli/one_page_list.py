"""One page of a directory that the asked server itself owns, without loading the resolver.

The resolver's modules cost as much start-up as a third of gRPC, and `kdir ls` of the own site
needs none of them. Refuses everything else: whatever is not one whole page of the asked server's
own tree, errors included, is None, and the resolver decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from resolver.errors import KdirError

if TYPE_CHECKING:
    from kdir.v1 import directory_pb2

    from resolver.cli.session import Session

__all__ = ["list_one_page"]

_SHARE: Final = 0.25
"""Of the time, so that a silent server leaves enough to ask the others."""


def list_one_page(
    session: Session, path: str, *, kinds: Sequence[str] = (), include_system: bool = False
) -> directory_pb2.ListEntriesResponse | None:
    """Returns the directory's listing, if the asked server owns it and one page holds all of it."""
    from kdir.v1 import directory_pb2

    from resolver.endpoints import per_server_timeout
    from resolver.errors import DeadlineExceeded, Unavailable
    from resolver.transport import method

    request = directory_pb2.ListEntriesRequest(
        path=path,
        kinds=[f"ENTRY_KIND_{kind.upper()}" for kind in kinds],
        include_system=include_system,
    )
    servers = session.health.order(session.servers())
    asked = method("DirectoryService.ListEntries")
    limit = per_server_timeout(session.timeout_seconds, _SHARE, hurried=len(servers) > 1)
    try:
        answer = session.transport.call(servers[0], asked, request, limit)
    except DeadlineExceeded:
        session.health.note_slow(servers[0])
        return None
    except Unavailable:
        session.health.note_failure(servers[0])
        return None
    except KdirError:
        return None
    session.health.note_success(servers[0])
    assert isinstance(answer, directory_pb2.ListEntriesResponse)  # noqa: S101 - the method's own
    mount = answer.authority.cluster.mount.rstrip("/")
    if answer.next_page_token or not f"{path}/".startswith(f"{mount}/"):
        return None
    return answer
