"""Path: the immutable name of an entry, a tuple of segments.

Paths are compared by segment, never by character: ``/a/b`` is no prefix of ``/a/bc`` (R4; as in
dnspython's ``dns/name.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from resolver.errors import InvalidPath
from resolver.printable import cut_name, cut_shown, shown_character

__all__ = [
    "DOTS_PATTERN",
    "ENTRY_PATTERN",
    "MAX_PATH_BYTES",
    "MAX_SEGMENTS",
    "MAX_SEGMENT_LENGTH",
    "ROOT",
    "Path",
    "check_segment",
    "is_segment",
    "is_system",
]

MAX_SEGMENT_LENGTH: Final = 249
"""Most characters in a segment: Kafka's own limit for a topic name."""
MAX_SEGMENTS: Final = 64
"""Most segments in a path."""
MAX_PATH_BYTES: Final = 1024
"""Most bytes in a path, slashes included."""

ENTRY_PATTERN: Final = r"(?:/[a-zA-Z0-9._-]{1,249})+"
"""Regular expression for an entry's path of any length. A text that ``DOTS_PATTERN`` matches is
none.
"""
DOTS_PATTERN: Final = r"/\.{1,2}(?:/|$)"

_SEGMENT = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
_CANONICAL = re.compile(r"(?:/[a-zA-Z0-9._-]{1,249}){1,64}", re.ASCII)
_ENTRY = re.compile(ENTRY_PATTERN, re.ASCII)
_DOTS = re.compile(DOTS_PATTERN)
_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Path:
    """A canonical absolute path.

    ``Path.parse("/la/orders").segments == ("la", "orders")``; the root has no segments.
    Ordering is by segments, so that a subtree is contiguous.
    """

    segments: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Path:
        """Parses a canonical path.

        Raises:
            InvalidPath: names the segment and character (counted from 1) and the rule.
        """
        if text == "/":
            return ROOT
        if len(text) <= MAX_PATH_BYTES and _CANONICAL.fullmatch(text) and not _DOTS.search(text):
            return cls(tuple(text[1:].split("/")))
        raise _explained(text)

    @classmethod
    def of_entry(cls, text: str) -> Path:
        """Parses the path of an entry that a server reports. The path may exceed the limits of
        depth and length (up to 16 times the bytes), if its cluster was moved to a longer mount
        since the entry was made.

        Raises:
            InvalidPath: names the segment and character (counted from 1) and the rule.
        """
        if text == "/":
            return ROOT
        if len(text) <= _MOST_READ_BYTES and _ENTRY.fullmatch(text) and not _DOTS.search(text):
            return cls(tuple(text[1:].split("/")))
        raise _explained(text)

    @classmethod
    def from_segments(cls, segments: Iterable[str]) -> Path:
        """Returns the path of these segments, after checking them and the whole path.

        Raises:
            InvalidPath: as ``parse``.
        """
        parts = tuple(segments)
        text = "/" + "/".join(parts)
        if (
            len(text) <= MAX_PATH_BYTES
            and text.count("/") == len(parts)  # else a segment contains a slash
            and _CANONICAL.fullmatch(text)
            and not _DOTS.search(text)
        ):
            return cls(parts)
        for position, segment in enumerate(parts, start=1):
            check_segment(segment, position)
        return cls.parse(text)

    def __str__(self) -> str:
        return "/" + "/".join(self.segments)

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def is_root(self) -> bool:
        """True for ``/``."""
        return not self.segments

    @property
    def name(self) -> str:
        """The last segment; empty for the root."""
        return self.segments[-1] if self.segments else ""

    @property
    def parent(self) -> Path:
        """The path without its last segment; the root is its own parent."""
        return Path(self.segments[:-1])

    def child(self, name: str) -> Path:
        """Returns the path of the entry ``name`` in this directory.

        Raises:
            InvalidPath: the name is not a segment, or the path becomes too long.
        """
        return Path.from_segments((*self.segments, name))

    def join(self, relative: Iterable[str]) -> Path:
        """Returns this path with segments appended.

        Raises:
            InvalidPath: a segment is invalid, or the path becomes too long.
        """
        return Path.from_segments((*self.segments, *relative))

    def is_prefix_of(self, other: Path) -> bool:
        """True if ``other`` is this path or lies below it."""
        return other.segments[: len(self.segments)] == self.segments

    def below(self, ancestor: Path) -> tuple[str, ...]:
        """Returns the segments of this path below ``ancestor``.

        Raises:
            ValueError: ``ancestor`` is not a prefix, which is a bug of the caller.
        """
        if not ancestor.is_prefix_of(self):
            raise ValueError(f"{self} is not at or below {ancestor}")
        return self.segments[len(ancestor.segments) :]

    def rebase(self, source: Path, target: Path) -> Path:
        """Returns this path with the prefix ``source`` replaced by ``target``."""
        return target.join(self.below(source))


ROOT: Final = Path()
"""Path of the root, ``/``."""


def is_system(name: str) -> bool:
    """True if a name is a system entry's (``__…``); listings hide these by default."""
    return name.startswith("__")


def is_segment(text: str) -> bool:
    """True if a text is a valid segment of a path."""
    return _SEGMENT.fullmatch(text) is not None and text not in {".", ".."}


def check_segment(segment: str, position: int = 1) -> None:
    """Checks one segment.

    Raises:
        InvalidPath: names the segment, its position (counted from 1) and the rule.
    """
    if not is_segment(segment):
        raise _explained_segment(segment, position)


def _refusal(message: str, *, segment: str, position: int, rule: str) -> InvalidPath:
    shown = cut_name(segment, _MOST_SHOWN)
    return InvalidPath(message, segment=shown, position=position, rule=rule)


_MOST_READ_BYTES: Final = 16 * MAX_PATH_BYTES
"""Most bytes of a path whose segments are checked: a peer may send any text."""
_MOST_SHOWN: Final = 60
"""Most characters that a message quotes: long input must not flood a terminal or a log."""


def _explained(text: str) -> InvalidPath:
    shown = cut_shown(text, _MOST_SHOWN)
    if not text.startswith("/"):
        return _refusal(
            f"path {shown}: must begin with '/'",
            segment=text,
            position=0,
            rule="absolute",
        )
    size = len(text.encode("utf-8", "surrogatepass"))
    segments = text[1:].split("/")
    if size <= _MOST_READ_BYTES:
        # The first invalid segment is a better message than "too long"; a huge path is not searched
        # for one.
        for position, segment in enumerate(segments, start=1):
            if not is_segment(segment):
                return _explained_segment(segment, position, f"path {shown}")
    if len(segments) > MAX_SEGMENTS:
        return _refusal(
            f"path {shown}: {len(segments)} segments; at most {MAX_SEGMENTS} are allowed",
            segment=segments[MAX_SEGMENTS],
            position=MAX_SEGMENTS + 1,
            rule="segments",
        )
    return _refusal(
        f"path {shown}: {size} bytes; at most {MAX_PATH_BYTES} are allowed",
        segment=segments[-1],
        position=len(segments),
        rule="bytes",
    )


def _explained_segment(segment: str, position: int, of: str = "invalid path") -> InvalidPath:
    where = f"segment {position}"
    if not segment:
        rule, what = "empty", f"{where} is empty"
    elif segment in {".", ".."}:
        rule, what = "dots", f"{where} is {segment!r}: paths are not relative"
    elif (illegal := _ILLEGAL.search(segment)) is not None:
        rule = "characters"
        what = (
            f"{where} is {cut_shown(segment, _MOST_SHOWN)}: character "
            f"{shown_character(illegal.group())} at {illegal.start() + 1} is not one of "
            f"a-z A-Z 0-9 . _ -"
        )
    else:
        rule = "length"
        what = (
            f"{where} has {len(segment)} characters; at most {MAX_SEGMENT_LENGTH} are allowed: "
            f"{cut_shown(segment, _MOST_SHOWN)}"
        )
    return _refusal(f"{of}: {what}", segment=segment, position=position, rule=rule)
