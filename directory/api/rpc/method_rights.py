"""Table of all methods: the right that each requires and on what, the function that checks it, the
threads it runs on, and the size of its request.

``AccessControl`` takes the rights on clusters from here, ``handlers.py`` lets no server start with
a method that has no row or runs on other threads, and a table of docs/security.md is made from it.
Rights on entries depend on the request: there a row names the function that checks them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from directory.access.grants import Operation

__all__ = ["CHECKS", "Check", "RequestSize", "Threads", "check_of", "cluster_check", "table"]


class Threads(enum.Enum):
    """Thread pool of a method, by the setting that limits it."""

    CALLS = "limits.read_threads"
    WRITES = "limits.write_threads"
    STREAMS = "limits.max_streams"


class RequestSize(enum.Enum):
    """Limit of the bytes of a method's request; ``RequestBounds.most_bytes`` has the number.

    Parsing a request takes the interpreter from all callers, so its size is limited before. The
    limit follows from the other bounds of such a request; if they allow more than
    ``limits.max_request_bytes``, that one applies.
    """

    TEXTS = "4 * limits.text_bytes"
    """Paths, tokens and numbers: four of the largest texts."""
    ENTRY = "4 * limits.text_bytes + 4 * limits.policies_bytes"
    """An entry with its policies and masks, or a list of grants or rules."""
    MESSAGE = "limits.max_request_bytes"
    """A batch of paths; what a child reports to its parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Right that a method requires."""

    takes: str
    """The right and its resource, for people."""
    by: str
    """Function that checks it, as ``module:name`` below ``directory.api``."""
    cluster: Operation | None = None
    """Right on the cluster that ``AccessControl`` checks; further ones are in ``takes``."""
    while_loading: bool = False
    """True if the method also answers before anything is loaded, where access is open."""
    threads: Threads = Threads.CALLS
    request: RequestSize = RequestSize.TEXTS


_ADMIN: Final = "access_control:AccessControl.require_admin"
_COMMAND: Final = "entry_writes:authorize_command"
_SEES: Final = "visible_tree:VisibleTree.lookup"
_ARMING: Final = "entry_writes:authorizing_on"


def _on_cluster(
    operation: Operation,
    threads: Threads = Threads.CALLS,
    *,
    while_loading: bool = False,
    also: str = "",
    request: RequestSize = RequestSize.TEXTS,
) -> Check:
    return Check(
        takes=f"{operation.name} on the cluster{also}",
        by=_ADMIN,
        cluster=operation,
        while_loading=while_loading,
        threads=threads,
        request=request,
    )


def _command(takes: str) -> Check:
    return Check(takes=takes, by=_COMMAND, threads=Threads.WRITES, request=RequestSize.ENTRY)


_ARMS: Final = Check(
    takes="ALTER_CONFIGS (acls: ALTER) and DESCRIBE on the entry of the kind that is meant, and on "
    "all below it that has grants of its own",
    by=_ARMING,
    threads=Threads.WRITES,
)
_GRANTS: Final = _command(
    "ALTER on the entry; grants of groups, transactional ids, clusters: ALTER on the cluster, too"
)

CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "ResolveService/Resolve": Check(
            takes="DESCRIBE on the entry", by="visible_tree:VisibleTree.lookup"
        ),
        "ResolveService/BatchResolve": Check(
            takes="DESCRIBE on each entry",
            by="visible_tree:VisibleTree.lookup",
            request=RequestSize.MESSAGE,
        ),
        "ResolveService/Locate": Check(
            takes="DESCRIBE on the topic", by="visible_tree:VisibleTree.can_describe"
        ),
        "DirectoryService/GetEntry": Check(takes="DESCRIBE on the entry", by=_SEES),
        "DirectoryService/ListEntries": Check(
            takes="DESCRIBE on the directory, and on each entry that is listed", by=_SEES
        ),
        "DirectoryService/CreateEntry": _command(
            "CREATE on the directory that it is made in; to adopt a topic, for a physical name "
            "that no operator gave that directory, for a mount: ALTER on the cluster, too"
        ),
        "DirectoryService/UpdateEntry": _command(
            "ALTER, or for topic configs ALTER_CONFIGS, on the entry; for a mount: ALTER on the "
            "cluster, too"
        ),
        "DirectoryService/DeleteEntry": _command(
            "DELETE on the entry, and on all below it that has grants of its own; for a mount: "
            "ALTER on the cluster, too"
        ),
        "DirectoryService/MoveEntry": _command(
            "ALTER on the entry and on all below it that has grants of its own, ALTER and CREATE "
            "on the directory that it comes into; where a mount moves: ALTER on the cluster, too"
        ),
        "WatchService/Watch": Check(
            takes="DESCRIBE on the entry of each event, then and now",
            by="change_view:ChangeView.streamed",
            threads=Threads.STREAMS,
        ),
        "WatchService/ListChanges": Check(
            takes="DESCRIBE on the entry of each event, then and now",
            by="change_view:ChangeView.logged",
        ),
        "WatchService/GetChangeLog": _on_cluster(Operation.DESCRIBE),
        "FederationService/Link": Check(
            takes="a certificate of the child's cluster id; without certificates CLUSTER_ACTION on "
            "the cluster",
            by="access_control:AccessControl.require_link_right",
            cluster=Operation.CLUSTER_ACTION,
            threads=Threads.STREAMS,
            request=RequestSize.MESSAGE,
        ),
        "FederationService/ListMounts": Check(
            takes="that DESCRIBE on the mount is not denied; of those that wait: DESCRIBE on the "
            "cluster",
            by="visible_tree:VisibleTree.can_refer_to",
        ),
        "ScanService/ScanTopics": Check(
            takes="DESCRIBE on something in the directory, and on each topic, in the tree that is "
            "read and now",
            by="visible_tree:VisibleTree.can_describe",
        ),
        "PolicyService/GetEffectivePolicies": Check(
            takes="DESCRIBE on the entry", by=_SEES, request=RequestSize.ENTRY
        ),
        "PolicyService/PlanArming": _ARMS,
        "PolicyService/Arm": _ARMS,
        "AccessService/AddGrants": _GRANTS,
        "AccessService/RemoveGrants": _GRANTS,
        "AccessService/ListGrants": Check(takes="DESCRIBE on the entry", by=_SEES),
        "AccessService/CheckAccess": Check(
            takes="about oneself: nothing, and a hidden entry counts as absent; about others: "
            "DESCRIBE on the entry",
            by="access_service:can_query_access",
        ),
        "AccessService/AuthorizeAny": Check(
            takes="about oneself: nothing; about others: DESCRIBE on the cluster",
            by=_ADMIN,
            cluster=Operation.DESCRIBE,
        ),
        "AdminService/GetStatus": _on_cluster(
            Operation.DESCRIBE, while_loading=True, also="; of entries what it may DESCRIBE"
        ),
        "AdminService/AdoptTopics": _on_cluster(
            Operation.ALTER, Threads.WRITES, request=RequestSize.ENTRY
        ),
        "AdminService/ListDrift": _on_cluster(
            Operation.DESCRIBE, also=", and DESCRIBE on each entry that is listed"
        ),
        "AdminService/Acknowledge": _on_cluster(Operation.ALTER, Threads.WRITES),
        "AdminService/FinalizeFeatures": _on_cluster(Operation.ALTER, Threads.WRITES),
        "AdminService/ResyncChangeLog": _on_cluster(Operation.ALTER, Threads.WRITES),
        "AdminService/SkipChangeLog": _on_cluster(Operation.ALTER, Threads.WRITES),
        "AdminService/EndChangeLog": _on_cluster(Operation.ALTER, Threads.WRITES),
        "AdminService/DetachParent": _on_cluster(Operation.ALTER, Threads.WRITES),
        "AdminService/AttachParent": _on_cluster(Operation.ALTER, Threads.WRITES),
        "AdminService/Verify": _on_cluster(Operation.ALTER, Threads.STREAMS),
        "AdminService/Backup": _on_cluster(Operation.ALTER, Threads.STREAMS),
    }
)
"""Rows by service and method, in the order of the contract. gRPC's own services, health and
reflection, take no right and reveal nothing of the tree.
"""


def check_of(method: str) -> Check:
    """Returns the row of a method such as ``AdminService/Backup``.

    Raises:
        LookupError: it has none, so no server may offer it.
    """
    try:
        return CHECKS[method]
    except KeyError:
        raise LookupError(
            f"{method} has no row in directory/api/rpc/method_rights.py: a method that nothing "
            f"checks is not offered"
        ) from None


def cluster_check(method: str) -> tuple[Operation, Check]:
    """Returns the right on the cluster that a method requires.

    Raises:
        LookupError: it requires none, or has no row.
    """
    check = check_of(method)
    if check.cluster is None:
        raise LookupError(f"{method} requires no right on a cluster")
    return check.cluster, check


def table() -> str:
    """Returns the table of docs/security.md."""
    rows = ["| RPC | takes | decided by | threads | bytes of a request |", "|---|---|---|---|---|"]
    rows += [
        f"| {method} | {check.takes} | `{check.by.replace(':', '.')}` | `{check.threads.value}` "
        f"| `{check.request.value}` |"
        for method, check in CHECKS.items()
    ]
    return "\n".join(rows) + "\n"
