"""Globs over live paths: asks only for what can match; refuses to match by itself.

Which names match is ``resolver/glob.py``'s rule, applied by the servers segment by segment, and
here where ``**`` makes everything below one directory a candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from resolver.directory_listing import ListedEntry, NotListed
from resolver.errors import Absent, InvalidPath, KdirError
from resolver.glob import Glob
from resolver.path import ROOT, Path, check_segment, is_system

if TYPE_CHECKING:
    from resolver.client import Resolver

__all__ = ["expand_glob"]

_CONTAINERS: Final = ("directory", "link", "mount")
_SIGNS: Final = frozenset("*?[")


def expand_glob(
    resolver: Resolver, text: str, gaps: list[NotListed], *, include_system: bool = False
) -> Iterator[ListedEntry]:
    """Yields the entries that a pattern matches, in path order; what could not be asked goes to
    ``gaps``.

    A pattern that ends in ``/`` matches only what one can go into. System entries match where
    they are wanted, or a segment begins with ``__`` itself.

    Raises:
        InvalidArgument: not a pattern.
        InvalidPath: does not begin with ``/``.
        Absent: nothing matches, and everything could be asked.
    """
    if not text.startswith("/"):
        raise InvalidPath(f"{text!r}: must begin with '/'", rule="absolute")
    containers_only = text.endswith("/")
    pattern = Glob.parse(text.rstrip("/"))
    segments = text.strip("/").split("/")
    include_system = include_system or any(map(is_system, segments))
    found = False
    for one in _Expansion(resolver, pattern, gaps, include_system=include_system).at(
        ROOT, segments
    ):
        if containers_only and one.entry.WhichOneof("kind") == "topic":
            continue
        found = True
        yield one
    if not found and not gaps:
        raise Absent(f"nothing matches {text}", path=text)


class _Expansion:
    """One pattern being expanded."""

    def __init__(
        self, resolver: Resolver, pattern: Glob, gaps: list[NotListed], *, include_system: bool
    ) -> None:
        self._resolver = resolver
        self._pattern = pattern
        self._gaps = gaps
        self._include_system = include_system

    def at(self, base: Path, segments: Sequence[str]) -> Iterator[ListedEntry]:
        """Yields what matches ``segments`` below ``base``; what is not there is no match."""
        while len(segments) > 1 and _is_plain(segments[0]):
            check_segment(segments[0])
            base, segments = base.child(segments[0]), segments[1:]
        try:
            if "**" in segments:
                yield from self._below(base)
            else:
                yield from self._in(base, segments)
        except Absent:
            return
        except KdirError as error:
            self._gaps.append(NotListed(base, error))

    def _below(self, base: Path) -> Iterator[ListedEntry]:
        listing = self._resolver.list(base, recursive=True, include_system=self._include_system)
        for one in listing:
            if self._pattern.matches(one.path.segments):
                yield one
        self._gaps.extend(listing.not_listed)

    def _in(self, base: Path, segments: Sequence[str]) -> Iterator[ListedEntry]:
        last = len(segments) == 1
        listing = self._resolver.list(
            base,
            name_glob=segments[0],
            kinds=() if last else _CONTAINERS,
            include_system=self._include_system,
        )
        for one in listing:
            if one.path == base:
                return  # a topic where a directory was wanted: it lists itself
            if last:
                yield one
            else:
                yield from self.at(one.path, segments[1:])
        self._gaps.extend(listing.not_listed)


def _is_plain(segment: str) -> bool:
    return _SIGNS.isdisjoint(segment)
