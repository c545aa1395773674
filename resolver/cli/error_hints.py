"""Prints errors on stderr, with hints about what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from resolver.cli.output import complain
from resolver.errors import (
    Absent,
    AlreadyExists,
    CrossMount,
    DeadlineExceeded,
    EtagMismatch,
    HasMounts,
    InvalidNamespace,
    InvalidPath,
    KdirError,
    LocksOut,
    MountMismatch,
    NoRoute,
    NotEmpty,
    OutboxFull,
    StoreSealed,
    TokenExpired,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

if TYPE_CHECKING:
    from resolver.cli.session import Session

__all__ = ["explain", "headline", "hints"]

_MOST_ATTEMPTS = 8
_COULD_NOT_SAY = 3
_NAMES: Final = 1_000
"""Most names that are searched for a similar one."""


def explain(error: KdirError, session: Session | None) -> None:
    """Prints the error and its hints."""
    complain(f"error: {headline(error)} ({error.reason})")
    if isinstance(error, Absent) and session is not None and (similar := _similar(error, session)):
        complain(f"  did you mean {similar}?")
    complain(*(f"  {hint}" for hint in hints(error)))
    if isinstance(error, Absent) and session is not None and any(session.login()):
        complain("  or you lack DESCRIBE on it; your identity: kdir doctor")
    verbose = session is not None and session.verbose
    # The queried servers are of interest only if none of them could answer.
    attempts = error.attempts if verbose or error.exit_code == _COULD_NOT_SAY else ()
    if len(attempts) == 1 and not verbose:
        attempts = ()  # the error is the answer of this server
    most = len(attempts) if verbose else _MOST_ATTEMPTS
    complain(*(f"  queried: {attempt}" for attempt in attempts[:most]))
    if len(attempts) > most:
        complain(f"  and {len(attempts) - most} more; --verbose shows them")


def _similar(error: Absent, session: Session) -> str:
    """Returns the path of an entry with a similar name in the nearest directory, among those that
    the caller may describe; empty if none is found.
    """
    from difflib import get_close_matches

    from kdir.v1 import directory_pb2

    from resolver.path import Path

    nearest = error.metadata.get("nearest_directory") or error.metadata.get("nearest")
    if not nearest or "path" not in error.metadata:
        return ""
    request = directory_pb2.ListEntriesRequest(path=str(nearest), page_size=_NAMES)
    try:
        above = Path.parse(str(nearest))
        (missing, *_) = Path.parse(str(error.metadata["path"])).segments[len(above.segments) :]
        listed = session.resolver.call(above, "DirectoryService.ListEntries", request)
    except (KdirError, ValueError):
        return ""
    names = {entry.path.rpartition("/")[2] for entry in listed.entries}
    near = get_close_matches(missing, sorted(names - {missing}), n=1)
    return str(above.join((near[0],))) if near else ""


def headline(error: KdirError) -> str:
    """Returns the error in one sentence, without the parts that the hints repeat."""
    missing = error.metadata.get("missing")
    if isinstance(error, InvalidNamespace) and missing:
        return f"{missing} does not exist"
    return error.message


def hints(error: KdirError) -> Iterator[str]:
    """Yields what to do next, as lines of text."""
    facts = error.metadata
    yield from _kafka_hints(facts)
    match error:
        case InvalidNamespace() if "missing" in facts:
            if similar := facts.get("similar"):
                yield f"did you mean {similar}? its content: kdir ls {similar}"
            near = facts.get("nearest", "/")
            if near != facts["missing"]:  # else it is hidden from the caller
                yield f"nearest directory above: {near}"
                yield f"to create it: kdir mkdir {facts['missing']}"
        case Absent():
            nearest = facts.get("nearest_directory") or facts.get("nearest")
            if nearest and nearest != facts.get("path"):
                yield f"its content: kdir ls {nearest}"
        case NoRoute():
            yield from _route_hints(facts)
        case EtagMismatch() if "path" in facts:
            yield f"who changed it: kdir history {facts['path']}; then the same command again"
        case AlreadyExists() if "path" in facts:
            yield f"existing entry: kdir stat {facts['path']}"
        case Unavailable() if facts.keys() & {"index", "file"}:
            yield from _machine_hints(facts)
        case _:
            for kind, hint in _HINTS.items():
                if isinstance(error, kind):
                    yield hint
                    return


def _machine_hints(facts: Mapping[str, str]) -> Iterator[str]:
    """Yields hints for an error of a table or a file of this machine."""
    if "index" in facts:
        yield "an index elsewhere: --table DIR, or KDIR_INDEX"


def _route_hints(facts: Mapping[str, str]) -> Iterator[str]:
    """Yields hints if no route leads to a path or a cluster."""
    if "cluster" in facts:
        yield "known clusters, and which are linked: kdir mounts"
        return
    if (mount := facts.get("mount", "/")) != "/":
        yield f"what is served there: kdir ls {mount}"
    yield "the server has no route to that path; check its parent link: kdir doctor"


def _kafka_hints(facts: Mapping[str, str]) -> Iterator[str]:
    """Yields hints if a cluster has no Kafka, or no topic of this name."""
    if facts.get("kafka") == "none":
        yield "clusters with topics of their own: kdir mounts"
    if "physical_name" in facts and "mount" in facts:
        yield f"removed, and left in Kafka? kdir ls --detached {facts['mount']}"


_HINTS: Final[Mapping[type[KdirError], str]] = {
    InvalidPath: "a path looks like /la/tracking/search/clicks",
    NotEmpty: "to remove everything below it too: kdir rm -r; dry run: --plan",
    HasMounts: "mounts below it: kdir mounts; unmount each first: kdir umount PATH",
    CrossMount: "a topic's data stays in its cluster; create a link instead: kdir ln",
    MountMismatch: "pending children: kdir mounts PATH",
    TokenExpired: "the token is from an earlier incarnation of the store; retry without it",
    OutboxFull: "kdir log; kdir log skip gives up what waits; more may wait: limits.outbox_changes",
    LocksOut: "to close it anyway, repeat the command with --yes; dry run: --plan",
    StoreSealed: "the reason, and the new location if it was moved: kdir doctor",
    Unauthenticated: "to authenticate: kdir context set NAME --token-file FILE, or "
    "--cert and --key",
    Unimplemented: "the server may be of another version: kdir doctor",
    DeadlineExceeded: "a longer timeout: --timeout 30; reachable servers: kdir doctor",
    Unavailable: "reachable servers: kdir doctor",
}
