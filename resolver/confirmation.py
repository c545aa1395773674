"""Approval of what cannot be undone: by ``--yes``, or by a person at a terminal.

The one place that decides it, for the verbs that ask servers (``Session.approve``) and for those
that work on stores (``directory/maintenance/offline_commands.py``).
"""

from __future__ import annotations

import sys

from resolver.printable import printable

__all__ = ["NotApproved", "approve", "confirm", "is_interactive"]


class NotApproved(Exception):
    """Error of an action without ``--yes`` where there is no terminal to ask at."""

    def __init__(self, action: str) -> None:
        super().__init__(
            f"to {action} needs --yes where there is no terminal to ask at; nothing was changed"
        )


def is_interactive() -> bool:
    """True if there is a person to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> bool:
    """Asks a person, who answers on the same line; without one the answer is no."""
    if not is_interactive():
        return False
    sys.stdout.flush()
    sys.stderr.write(f"{printable(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def approve(action: str, consequence: str = "", *, yes: bool) -> bool:
    """Returns whether something that cannot be undone may be done.

    Args:
        action: what would be done, as in ``remove topic /la/x``.
        consequence: what comes of it, as a sentence without a full stop.
        yes: ``--yes`` was given.

    Raises:
        NotApproved: ``yes`` is false, and there is nobody to ask.
    """
    if yes:
        return True
    if not is_interactive():
        raise NotApproved(action)
    return confirm(f"{action}? {consequence}".rstrip())
