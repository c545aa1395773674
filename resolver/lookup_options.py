"""Options of a lookup, from the caller's arguments."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from resolver import errors
from resolver.path import Path

__all__ = ["LookupOptions", "as_path", "kind_number"]

_KINDS: Final = {"": 0, "directory": 1, "topic": 2, "link": 3, "mount": 4}


class LookupOptions(NamedTuple):
    """Options of a lookup besides the path."""

    prefer: int = 0
    no_follow: bool = False
    for_writes: bool = False
    """True: do not go on to a link's next target while one is unreachable, unless the link has
    ``writes`` = ``follow``.
    """
    confirm_links: bool = False
    """True: follow only links that are read from the store, not from a copy; for changes of the
    directory.
    """

    def key(self, path: str) -> Hashable:
        """Returns the cache key of an answer: the path alone if all options have their defaults."""
        return path if self == _PLAIN else (path, self)


_PLAIN: Final = LookupOptions()


def as_path(path: str | Path) -> Path:
    """Returns a path from text or a ``Path``.

    Raises:
        InvalidPath: the text is not a canonical path.
        TypeError: ``path`` is neither text nor a ``Path``.
    """
    if isinstance(path, Path):
        return path
    if not isinstance(path, str):
        raise TypeError(f"path: found {path!r}; expected text such as '/la/x', or a Path")
    return Path.parse(path)


def kind_number(name: str) -> int:
    """Returns the number of a kind of entry, such as ``directory``; 0 for any.

    Raises:
        InvalidArgument: there is no such kind.
    """
    try:
        return _KINDS[name]
    except KeyError:
        known = ", ".join(kind for kind in _KINDS if kind)
        raise errors.InvalidArgument(
            f"kind {name!r}: expected one of {known}", field="kind"
        ) from None
