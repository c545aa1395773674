"""What went wrong, in words a person can act on; goes to stderr, and decides no exit code."""

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
    MountDisagrees,
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
    """Print the error, and what could be done about it."""
    complain(f"error: {headline(error)} ({error.reason})")
    complain(*(f"  {hint}" for hint in hints(error)))
    if isinstance(error, Absent) and session is not None and any(session.login()):
        complain("  or you may not see it: kdir doctor says who you are")
    verbose = session is not None and session.verbose
    # Who was asked says something where nobody could answer; else the answer says it all.
    attempts = error.attempts if verbose or error.exit_code == _COULD_NOT_SAY else ()
    if len(attempts) == 1 and not verbose:
        attempts = ()  # the error is what that one said
    most = len(attempts) if verbose else _MOST_ATTEMPTS
    complain(*(f"  asked: {attempt}" for attempt in attempts[:most]))
    if len(attempts) > most:
        complain(f"  and {len(attempts) - most} more; --verbose shows them")


def headline(error: KdirError) -> str:
    """The error in one sentence, without what the hints say better."""
    missing = error.metadata.get("missing")
    if isinstance(error, InvalidNamespace) and missing:
        return f"{missing} does not exist"
    return error.message


def hints(error: KdirError) -> Iterator[str]:
    """What to try next, one line each."""
    facts = error.metadata
    match error:
        case InvalidNamespace() if "missing" in facts:
            near = facts.get("similar") or facts.get("nearest", "/")
            if near != facts["missing"]:  # else it is hidden from who asks, and cannot be made
                yield f"nearest directory: {near}"
                yield f"to make it: kdir mkdir {facts['missing']}"
        case Absent():
            nearest = facts.get("nearest_directory") or facts.get("nearest")
            if nearest and nearest != facts.get("path"):
                yield f"what is there: kdir ls {nearest}"
        case AlreadyExists() if "path" in facts:
            yield f"what stands there: kdir stat {facts['path']}"
        case _:
            for kind, hint in _HINTS.items():
                if isinstance(error, kind):
                    yield hint
                    return


_HINTS: Final[Mapping[type[KdirError], str]] = {
    InvalidPath: "a path looks like /la/tracking/search/clicks",
    NotEmpty: "to remove all below it too: kdir rm -r; --plan says what would go",
    HasMounts: "which they are: kdir mounts; take each off first: kdir umount PATH",
    CrossMount: "a topic's data stays in its cluster: make a link instead, kdir ln",
    MountDisagrees: "which clusters wait, and what they say: kdir mounts PATH",
    NoRoute: "the asked server knows no way there: has its cluster a parent? kdir doctor",
    TokenExpired: "leave the token out: the store has begun a new life since it was given",
    LocksOut: "to close it all the same: --yes; what it would do: kdir set --plan",
    StoreSealed: "why, and where it lives if it was moved: kdir doctor",
    Unauthenticated: "who you are: kdir context set NAME --token-file FILE, or --cert and --key",
    Unimplemented: "the server may be of another version: kdir doctor",
    DeadlineExceeded: "more time: --timeout 30; who can be reached: kdir doctor",
    Unavailable: "who can be reached: kdir doctor",
}
