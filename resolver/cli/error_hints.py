"""What went wrong, as text that a person can act on; goes to stderr, and decides no exit code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from resolver.cli.output import complain
from resolver.errors import (
    Absent,
    AlreadyExists,
    CrossMount,
    DeadlineExceeded,
    HasMounts,
    InvalidNamespace,
    InvalidPath,
    KdirError,
    LocksOut,
    MountMismatch,
    NoRoute,
    NotEmpty,
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


def explain(error: KdirError, session: Session | None) -> None:
    """Prints the error, and what could be done about it."""
    complain(f"error: {headline(error)} ({error.reason})")
    complain(*(f"  {hint}" for hint in hints(error)))
    if isinstance(error, Absent) and session is not None and any(session.login()):
        complain("  or you lack DESCRIBE on it; your identity: kdir doctor")
    verbose = session is not None and session.verbose
    # Who was asked says something where nobody could answer; else the answer says it all.
    attempts = error.attempts if verbose or error.exit_code == _COULD_NOT_SAY else ()
    if len(attempts) == 1 and not verbose:
        attempts = ()  # the error is the answer of that one
    most = len(attempts) if verbose else _MOST_ATTEMPTS
    complain(*(f"  queried: {attempt}" for attempt in attempts[:most]))
    if len(attempts) > most:
        complain(f"  and {len(attempts) - most} more; --verbose shows them")


def headline(error: KdirError) -> str:
    """Returns the error in one sentence, without what the hints say better."""
    missing = error.metadata.get("missing")
    if isinstance(error, InvalidNamespace) and missing:
        return f"{missing} does not exist"
    return error.message


def hints(error: KdirError) -> Iterator[str]:
    """Yields what to try next, one line each."""
    facts = error.metadata
    match error:
        case InvalidNamespace() if "missing" in facts:
            if similar := facts.get("similar"):
                yield f"did you mean {similar}? its content: kdir ls {similar}"
            near = facts.get("nearest", "/")
            if near != facts["missing"]:  # else it is hidden from who asks, and cannot be made
                yield f"nearest directory above: {near}"
                yield f"to create it: kdir mkdir {facts['missing']}"
        case Absent():
            nearest = facts.get("nearest_directory") or facts.get("nearest")
            if nearest and nearest != facts.get("path"):
                yield f"its content: kdir ls {nearest}"
        case NoRoute() if facts.get("mount", "/") != "/":
            yield f"what is served there: kdir ls {facts['mount']}"
            yield _HINTS[NoRoute]
        case AlreadyExists() if "path" in facts:
            yield f"existing entry: kdir stat {facts['path']}"
        case _:
            for kind, hint in _HINTS.items():
                if isinstance(error, kind):
                    yield hint
                    return


_HINTS: Final[Mapping[type[KdirError], str]] = {
    InvalidPath: "a path looks like /la/tracking/search/clicks",
    NotEmpty: "to remove everything below it too: kdir rm -r; dry run: --plan",
    HasMounts: "mounts below it: kdir mounts; unmount each first: kdir umount PATH",
    CrossMount: "a topic's data stays in its cluster; create a link instead: kdir ln",
    MountMismatch: "pending children: kdir mounts PATH",
    NoRoute: "the server has no route to that path; check its parent link: kdir doctor",
    TokenExpired: "the token is from an earlier incarnation of the store; retry without it",
    LocksOut: "to close it anyway: --yes; dry run: kdir set --plan",
    StoreSealed: "the reason, and the new location if it was moved: kdir doctor",
    Unauthenticated: "to authenticate: kdir context set NAME --token-file FILE, or "
    "--cert and --key",
    Unimplemented: "the server may be of another version: kdir doctor",
    DeadlineExceeded: "a longer timeout: --timeout 30; reachable servers: kdir doctor",
    Unavailable: "reachable servers: kdir doctor",
}
