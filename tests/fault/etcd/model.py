"""A model of etcd's history as a watch tells it, and of what a follower must make of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from directory.store.base import CommittedWrites, Delete, Identity, Put, Write
from directory.store.etcd.watch_state import COMMIT, IDENTITY, ROWS, Event, Head, Response

ETCD = 0xE7CD
INCARNATION = Identity("store", "kc-fake000000", "la", "life-1", 1)


def read_identity(value: bytes, _: int) -> Identity:
    """Returns the model's identity: ``incarnation|sealed``."""
    incarnation, bar, sealed = value.decode().partition("|")
    if not bar:
        raise ValueError(f"no identity: {value!r}")
    return replace(INCARNATION, incarnation=incarnation, sealed=sealed)


def identity_value(incarnation: str = INCARNATION.incarnation, sealed: str = "") -> bytes:
    return f"{incarnation}|{sealed}".encode()


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of the model. Without events it is another cluster's."""

    number: int
    events: tuple[Event, ...] = ()

    @property
    def commit(self) -> Event | None:
        return next((event for event in self.events if event.key == COMMIT), None)

    @property
    def changes(self) -> CommittedWrites:
        assert self.commit is not None
        assert self.commit.value is not None
        return CommittedWrites(self.number, self.commit.value.decode(), tuple(_writes(self.events)))


def _writes(events: Iterable[Event]) -> Iterable[Write]:
    for event in events:
        if event.key.startswith(ROWS):
            key = event.key.removeprefix(ROWS)
            yield Put(key, event.value) if event.value is not None else Delete(key)


class History:
    """Revisions from 1 on: 1 is etcd's own, in 2 the cluster's identity is written."""

    def __init__(self) -> None:
        self.revisions = [Revision(1)]
        self.commits = 0
        self.add((Event(2, IDENTITY, identity_value(), 1),))

    @property
    def now(self) -> int:
        return self.revisions[-1].number

    def add(self, events: Sequence[Event]) -> Revision:
        """Returns the next revision, of these events whatever their number."""
        number = self.now + 1
        revision = Revision(number, tuple(event._replace(revision=number) for event in events))
        self.revisions.append(revision)
        return revision

    def foreign(self) -> None:
        """Adds a write of another cluster."""
        self.add(())

    def commit(self, *writes: Write, identity: bytes | None = None) -> Revision:
        """Returns one of ours."""
        self.commits += 1
        events = [Event(0, COMMIT, b"c%d" % self.commits, self.commits)]
        if identity is not None:
            events.append(Event(0, IDENTITY, identity, 2))
        for write in writes:
            value = write.value if isinstance(write, Put) else None
            events.append(Event(0, ROWS + write.key, value, 0 if value is None else 1))
        # etcd tells a transaction's events in the order of its operations; ours writes meta last.
        return self.add([*events[1:], events[0]])

    def after(self, revision: int) -> list[Revision]:
        return [one for one in self.revisions if one.number > revision and one.events]

    def changes(self, after: int) -> list[CommittedWrites]:
        """Returns what a follower must give out."""
        return [one.changes for one in self.after(after) if one.commit is not None]

    def head(self, revision: int = 0) -> Head:
        """Returns what ``meta/`` held."""
        revision = revision or self.now
        commit, identity = None, None
        for one in self.revisions[:revision]:
            for event in one.events:
                if event.key == COMMIT:
                    commit = event
                elif event.key == IDENTITY:
                    identity = event.value
        if commit is None:
            return Head(ETCD, revision, identity=identity, born=2)
        assert commit.value is not None
        return Head(
            ETCD, revision, commit.value.decode(), commit.revision, commit.version, identity, 2
        )


def whole(history: History, revisions: Iterable[Revision]) -> Response:
    """Returns all these revisions in one response."""
    return Response(ETCD, history.now, tuple(event for one in revisions for event in one.events))
