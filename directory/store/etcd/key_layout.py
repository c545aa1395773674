"""Layout of the keys of one cluster in etcd.

::

    <prefix>/alive/<token>     leased: there while the process that holds a role or an announced key
                               is alive
    <prefix>/announced/<key>   the token that must be alive for the row <key> to stay
    <prefix>/kv/<key>          a row of the store
    <prefix>/meta/commit       the last commit's id, written by every transaction: its revision is
                               the store's, its version the number of commits
    <prefix>/meta/identity     whose store this is, and which incarnation of it (``incarnation.py``)

No row has a lease of its own: etcd would remove the row in a revision that is no commit. The keys
of a dead process under ``alive`` expire; then a commit of the sweeper removes the rows that
depended on them. ``alive`` and ``announced`` sort before what is watched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from directory.store.etcd.watch_state import COMMIT, IDENTITY, ROWS

__all__ = ["Layout", "end_of"]

_ALIVE: Final = b"alive/"
_ANNOUNCED: Final = b"announced/"


def end_of(prefix: bytes) -> bytes:
    """Returns the first key after all those with a prefix; a zero byte means that there
    is no end.
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\0"


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys below one prefix, which ends with a slash: ``/la/`` is no prefix of ``/la2/``."""

    root: bytes

    @property
    def root_end(self) -> bytes:
        return end_of(self.root)

    @property
    def commit(self) -> bytes:
        return self.root + COMMIT

    @property
    def identity(self) -> bytes:
        return self.root + IDENTITY

    @property
    def rows(self) -> bytes:
        """Prefix of all rows."""
        return self.root + ROWS

    @property
    def announced(self) -> bytes:
        """Prefix of the records of ephemeral keys."""
        return self.root + _ANNOUNCED

    @property
    def alive(self) -> bytes:
        """Prefix of the leased keys."""
        return self.root + _ALIVE

    def row(self, key: bytes) -> bytes:
        """Returns the key of a row."""
        return self.rows + key

    def row_range(self, prefix: bytes) -> tuple[bytes, bytes]:
        """Returns the range of all rows with a prefix. An empty prefix, or one of 0xff bytes only,
        ends where the rows end.
        """
        return self.rows + prefix, end_of(self.rows + prefix)
