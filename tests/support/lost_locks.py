"""Locks of a sqlite store that go without their process knowing, as after a pause or a kill."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["forget_lock", "lose_lock"]


def lose_lock(held: Any) -> None:
    """Frees a leadership's or an announcement's lock, as the kernel does when a process ends."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    # Replaced, not closed: the descriptor stays the holder's, which may close it on resigning.
    os.dup2(nothing, _lock_of(held)._descriptor)
    os.close(nothing)


def forget_lock(held: Any) -> None:
    """Marks the lock as gone, so that its holder never closes the descriptor."""
    _lock_of(held)._descriptor = -1


def _lock_of(held: Any) -> Any:
    return getattr(held, "_alive", held)
