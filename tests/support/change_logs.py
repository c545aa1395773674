"""Change logs in tests: what their topics hold, read by the project's own reader."""

from __future__ import annotations

from dataclasses import dataclass

from resolver.changes.record import Change, Schemas
from resolver.changes.topic_reader import TopicReader

__all__ = ["ChangeLogTopics", "LogContents"]


@dataclass(frozen=True, slots=True)
class LogContents:
    """Contents of the two topics: the newest value of each state key, and the history in order."""

    state: dict[str, Change]
    checkpoint: Change | None
    history: list[Change]

    @property
    def rows(self) -> dict[bytes, bytes]:
        """The rows of the store that the state holds whole, by key; grants by their entry's id."""
        return {
            one.key if one.key is not None else b"g/%d" % one.entry_id: one.record
            for one in self.state.values()
            if one.record is not None
        }


class ChangeLogTopics:
    """The topics of one cluster's change log."""

    def __init__(self, bootstrap: str, cluster_id: str, *, suffix: str = "") -> None:
        self.cluster_id = cluster_id
        self._properties = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.state_topic = f"__change_events{suffix}"
        self.history_topic = f"__change_history{suffix}"

    def read(self) -> LogContents:
        """Reads both topics to their ends."""
        schemas, state = Schemas(), dict[str, Change]()
        prefix = f"{self.cluster_id}/"
        for key, value in self._records(self.state_topic):
            assert key.startswith(prefix), key
            if key.startswith(f"{prefix}s/"):
                continue
            if value is None:
                state.pop(key, None)
            else:
                state[key] = schemas.decode(value)
        checkpoint = state.pop(f"{prefix}c", None)
        records = self._records(self.history_topic)
        history = [schemas.decode(value) for _, value in records if value is not None]
        return LogContents(state, checkpoint, history)

    def _records(self, topic: str) -> list[tuple[str, bytes | None]]:
        reader = TopicReader(self._properties, topic)
        try:
            found = reader.read(*reader.bounds())
            return [((one.key or b"").decode(), one.value) for one in found]
        finally:
            reader.close()
