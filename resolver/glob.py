"""Glob: patterns over paths, matched in linear time.

Grammar, by segment, anchored at both ends::

    *       any characters within a segment, also none
    ?       one character
    [a-f]   one character of a set; [!…] and [^…] one that is not in it; ] is itself
            where it is first, - where it is first or last
    **      as a whole segment: any number of segments, also none

A leading ``/`` has no effect: ``/la/*`` and ``la/*`` are one pattern. There is no escape: no name
contains a special character of patterns.

A segment is matched in one pass without backtracking: it is cut at each ``*`` into runs of a known
length, and the leftmost match of each run is taken, since an earlier match leaves more characters
for the later runs. Runs of plain characters are found by ``str.find``, others by simulating all
their states in the bits of an integer (shift-and: Baeza-Yates and Gonnet, "A new approach to text
searching", CACM 35(10), 1992). Segments between ``**`` are matched likewise.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters, digits
from typing import Final, NamedTuple, NoReturn

from resolver.errors import InvalidArgument
from resolver.path import MAX_PATH_BYTES, MAX_SEGMENTS
from resolver.printable import cut_name, cut_shown, shown_character

__all__ = ["Glob"]

_LEGAL: Final = frozenset(f"{ascii_letters}{digits}._-")


class _Atom(NamedTuple):
    """Pattern of one character: one in a set, or, if ``inverse``, one not in it."""

    characters: frozenset[str]
    inverse: bool = False


_ANY: Final = _Atom(frozenset(), inverse=True)


class _Run:
    """Part of a segment without ``*``: it matches exactly ``length`` characters."""

    __slots__ = ("_masks", "_others", "length", "text")

    def __init__(self, atoms: Sequence[_Atom]) -> None:
        self.length = len(atoms)
        plain = all(len(atom.characters) == 1 and not atom.inverse for atom in atoms)
        self.text = "".join(one for atom in atoms for one in atom.characters) if plain else None
        # Positions as bits: by character, those that match it; and those that match any other one.
        self._others = sum(atom.inverse << position for position, atom in enumerate(atoms))
        self._masks: dict[str, int] = {}
        for position, atom in enumerate(atoms):
            for character in atom.characters:
                mask = self._masks.get(character, self._others)
                bit = 1 << position
                self._masks[character] = mask & ~bit if atom.inverse else mask | bit

    def starts(self, name: str, at: int) -> bool:
        """True if the run matches the characters from ``at``."""
        if self.text is not None:
            return name.startswith(self.text, at)
        if len(name) - at < self.length:
            return False
        return all(
            self._masks.get(name[at + position], self._others) >> position & 1
            for position in range(self.length)
        )

    def find(self, name: str, start: int, end: int) -> int:
        """Returns the position of the leftmost match between ``start`` and ``end``; -1 = none."""
        if self.text is not None:
            return name.find(self.text, start, end)
        states, accepting = 0, 1 << (self.length - 1)
        for place in range(start, end):
            states = (states << 1 | 1) & self._masks.get(name[place], self._others)
            if states & accepting:
                return place - self.length + 1
        return -1


@dataclass(frozen=True, slots=True)
class _Segment:
    """Pattern of one segment: runs with a ``*`` between each two."""

    runs: tuple[_Run, ...]
    prefix: str
    """Text with which every matching segment begins."""

    def matches(self, name: str) -> bool:
        """True if a name matches."""
        first, last = self.runs[0], self.runs[-1]
        if len(self.runs) == 1:
            return len(name) == first.length and first.starts(name, 0)
        at, end = first.length, len(name) - last.length
        if end < at or not first.starts(name, 0) or not last.starts(name, end):
            return False
        for run in self.runs[1:-1]:
            found = run.find(name, at, end) if run.length else at
            if found < 0:
                return False
            at = found + run.length
        return True


@dataclass(frozen=True, slots=True)
class Glob:
    """Pattern over paths. ``Glob.parse("/la/**/click*").matches(("la", "web", "clicks"))``."""

    text: str
    _groups: tuple[tuple[_Segment, ...], ...]
    """Patterns of segments, in groups that ``**`` separates."""

    @classmethod
    def parse(cls, text: str) -> Glob:
        """Parses a pattern.

        Raises:
            InvalidArgument: the pattern is invalid; the message has the position (characters
                counted from 1) and the rule.
        """
        if not text or text == "/":
            _refuse(text, 1, "is empty; a pattern names at least one segment, such as `*`")
        if len(text) > MAX_PATH_BYTES:
            _refuse(text, MAX_PATH_BYTES + 1, f"at most {MAX_PATH_BYTES} characters are allowed")
        at = 1 if text.startswith("/") else 0
        groups: list[list[_Segment]] = [[]]
        parts = text[at:].split("/")
        if len(parts) > MAX_SEGMENTS:
            _refuse(text, 1, f"{len(parts)} segments; at most {MAX_SEGMENTS} are allowed")
        for part in parts:
            if part == "**":
                groups.append([])
            else:
                groups[-1].append(_Reader(text, at, at + len(part)).segment())
            at += len(part) + 1
        return cls(text, tuple(tuple(group) for group in groups))

    @property
    def prefix(self) -> str:
        """Text with which the first segment of every matching path begins."""
        return self._groups[0][0].prefix if self._groups[0] else ""

    @property
    def is_segment(self) -> bool:
        """True if the pattern is for one segment, and not ``**``."""
        return len(self._groups) == 1 and len(self._groups[0]) == 1

    def matches_segment(self, name: str) -> bool:
        """True if a path of one segment, ``name``, matches."""
        if self.is_segment:
            return self._groups[0][0].matches(name)
        return self.matches((name,))

    def matches(self, segments: Sequence[str]) -> bool:
        """True if a path of these segments matches."""
        first, last = self._groups[0], self._groups[-1]
        if len(self._groups) == 1:
            return len(segments) == len(first) and _fits(first, segments, 0)
        at, end = len(first), len(segments) - len(last)
        if end < at or not _fits(first, segments, 0) or not _fits(last, segments, end):
            return False
        for group in self._groups[1:-1]:
            while at + len(group) <= end and not _fits(group, segments, at):
                at += 1
            at += len(group)
            if at > end:
                return False
        return True

    def __str__(self) -> str:
        return self.text


def _fits(group: Sequence[_Segment], segments: Sequence[str], at: int) -> bool:
    return all(one.matches(segments[at + place]) for place, one in enumerate(group))


class _Reader:
    """Parser of one segment of a pattern; its errors have positions in the whole pattern."""

    def __init__(self, text: str, start: int, end: int) -> None:
        self._text = text
        self._at = start
        self._start = start
        self._end = end
        self._runs: list[_Run] = []
        self._atoms: list[_Atom] = []

    def segment(self) -> _Segment:
        """Returns the pattern.

        Raises:
            InvalidArgument: as ``Glob.parse``.
        """
        part = self._text[self._start : self._end]
        if not part:
            _refuse(self._text, self._start + 1, "an empty segment: no `//` and no trailing `/`")
        if part in {".", ".."}:
            _refuse(self._text, self._start + 1, f"{part!r} is no segment of any path")
        while self._at < self._end:
            self._next()
        self._close()
        return _Segment(tuple(self._runs), prefix=re.split(r"[*?\[]", part, maxsplit=1)[0])

    def _next(self) -> None:
        character = self._text[self._at]
        match character:
            case "*":
                if self._text.startswith("**", self._at):
                    _refuse(self._text, self._at + 1, "`**` must be a whole segment")
                self._close()
                self._at += 1
            case "?":
                self._atoms.append(_ANY)
                self._at += 1
            case "[":
                self._set()
            case _:
                self._atoms.append(_Atom(frozenset(self._legal(self._at))))
                self._at += 1

    def _set(self) -> None:
        opened = self._at
        self._at += 1
        inverse = self._text[self._at : self._at + 1] in {"!", "^"}
        self._at += inverse
        first = self._at
        closing = self._text.find("]", first + 1, self._end)
        if closing < 0:
            _refuse(self._text, opened + 1, "`[` is never closed by `]`")
        characters: set[str] = set()
        while self._at < closing:
            low = self._text[self._at]
            is_range = self._at + 2 < closing and self._text[self._at + 1] == "-"
            high = self._text[self._at + 2] if is_range else low
            if is_range and high < low:
                _refuse(self._text, self._at + 1, f"the range {low}-{high} runs backwards")
            if not (low == "]" and self._at == first):
                self._legal(self._at)
            if is_range:
                self._legal(self._at + 2)
            characters.update(map(chr, range(ord(low), ord(high) + 1)))
            self._at += 3 if is_range else 1
        self._at = closing + 1
        self._atoms.append(_Atom(frozenset(characters), inverse))

    def _legal(self, place: int) -> str:
        character = self._text[place]
        if character not in _LEGAL:
            _refuse(
                self._text,
                place + 1,
                f"{shown_character(character)} is in no name: those are of a-z A-Z 0-9 . _ - alone",
            )
        return character

    def _close(self) -> None:
        self._runs.append(_Run(self._atoms))
        self._atoms = []


def _refuse(text: str, place: int, rule: str) -> NoReturn:
    raise InvalidArgument(
        f"invalid glob {cut_shown(text, 60)}: character {place}: {rule}",
        glob=cut_name(text, 60),
        place=place,
    )
