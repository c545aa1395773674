"""What commits changed that may want pushing to Kafka, noted until a leader takes it.

Filled by the replica's thread; refuses to judge whether anything has to be pushed
(``config_diff.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from directory.kafka.applying.last_applied import ARMED
from directory.kafka.applying.releases import INHERITED_KEYS
from directory.namespace.entry import DELETED_ID, ROOT_ID, Directory
from directory.namespace.keys import ENTRY, parse_entry_key
from directory.namespace.tree_nodes import ROOT_KEY
from directory.store.base import Put, Write
from directory.store.replica import AppliedCommit

__all__ = ["DirtyBatch", "DirtySet"]


class DirtyBatch(NamedTuple):
    """What is to be looked at."""

    directories: Sequence[int]
    """All below each of these ids."""
    topics: Sequence[tuple[int, str]]
    """Parent ids and names."""
    gone: set[int]
    """Entry ids of topics that are no more."""
    marks: bool
    """Something was armed."""


class DirtySet:
    """For any thread. A new one says that everything has to be looked at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Who comes new into office looks at everything: what the one before left undone is there.
        self._directories: dict[int, None] = {ROOT_ID: None}
        self._topics: dict[tuple[int, str], None] = {}
        self._gone: set[int] = set()
        self._marks = True

    def __bool__(self) -> bool:
        with self._lock:
            return bool(self._directories or self._topics or self._gone or self._marks)

    def note_all(self) -> None:
        """What was changed is not known."""
        with self._lock:
            self._directories, self._marks = {ROOT_ID: None}, True

    def note(self, applied: AppliedCommit) -> bool:
        """Returns what a commit changed; whether that may want pushing."""
        removed: set[int] = set()
        kept: set[int] = set()
        with self._lock:
            before = self._counts()
            for write in applied.writes:
                if write.key == ROOT_KEY:
                    self._directories[ROOT_ID] = None
                elif write.key.startswith(ENTRY):
                    self._note_entry(applied, write, removed, kept)
                elif write.key in INHERITED_KEYS:
                    self._directories[ROOT_ID] = None
                elif write.key.startswith(ARMED):
                    self._marks = True
            self._gone |= removed - kept
            return self._marks or self._counts() != before

    @contextmanager
    def take_all(self) -> Iterator[DirtyBatch]:
        """Yields all that was noted. It is forgotten here, unless its taker fails.

        A tree that is read after it was taken has what was noted; one that was read before may not.
        """
        with self._lock:
            found = DirtyBatch(list(self._directories), list(self._topics), self._gone, self._marks)
            self._directories, self._topics, self._gone, self._marks = {}, {}, set(), False
        try:
            yield found
        except BaseException:
            with self._lock:
                self._directories |= dict.fromkeys(found.directories)
                self._topics |= dict.fromkeys(found.topics)
                self._gone |= found.gone
                self._marks |= found.marks
            raise

    def _counts(self) -> tuple[int, int, int]:
        return len(self._directories), len(self._topics), len(self._gone)

    def _note_entry(
        self, applied: AppliedCommit, write: Write, removed: set[int], kept: set[int]
    ) -> None:
        parent_id, is_topic, name = parse_entry_key(write.key)
        if not is_topic:
            if isinstance(write, Put):
                self._note_directory(applied, parent_id, name)
        elif isinstance(write, Put):
            topic = applied.after.topic(parent_id, name)
            if topic is not None:
                kept.add(topic.entry_id)
                if parent_id != DELETED_ID:
                    self._topics[parent_id, name] = None
        else:
            topic = applied.before.topic(parent_id, name)
            if topic is not None:
                removed.add(topic.entry_id)

    def _note_directory(self, applied: AppliedCommit, parent_id: int, name: str) -> None:
        found = applied.after.container(parent_id, name)
        if not isinstance(found, Directory) or parent_id == DELETED_ID:
            return
        known = applied.before.node(found.entry_id)
        same = known is not None and known.parent_id == parent_id
        if not same or (known is not None and known.directory.policies != found.policies):
            self._directories[found.entry_id] = None
