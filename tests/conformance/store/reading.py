"""Short forms that the suite reads stores with."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager

from directory.store.base import (
    Committed,
    CommittedWrites,
    Delete,
    Guard,
    Put,
    Store,
    Transaction,
    Watch,
    Write,
)


def put(store: Store, *pairs: tuple[bytes, bytes], guards: Sequence[Guard] = ()) -> Committed:
    """Commits some puts, which must succeed."""
    writes = tuple(Put(key, value) for key, value in pairs)
    done = store.commit(Transaction(tuple(guards), writes))
    assert isinstance(done, Committed), done
    return done


def put_many(store: Store, pairs: Iterable[tuple[bytes, bytes]]) -> Committed:
    """Puts any number, in as many commits as the store's limits make of it; answers the last."""
    rows = list(pairs)
    most = min(1_000, store.limits.max_writes)
    done = [put(store, *rows[begin : begin + most]) for begin in range(0, len(rows), most)]
    return done[-1]


def remove(store: Store, *keys: bytes) -> Committed:
    """Commits some removals."""
    done = store.commit(Transaction((), tuple(Delete(key) for key in keys)))
    assert isinstance(done, Committed), done
    return done


def everything(store: Store, prefixes: Sequence[bytes] = (b"",)) -> dict[bytes, bytes]:
    """Returns all rows of the newest revision; their order is checked."""
    rows = [row for page in store.load(prefixes).pages() for row in page]
    assert [key for key, _ in rows] == sorted(key for key, _ in rows)
    return dict(rows)


@contextmanager
def following(store: Store, after: int = 0, commit_id: str = "") -> Iterator[Watch]:
    """Opens a watch for the time of the block."""
    with closing(store.watch(after, commit_id)) as watch:
        yield watch


def until(watch: Watch, revision: int, timeout_seconds: float = 30.0) -> list[CommittedWrites]:
    """Returns what the watch yields up to a revision."""
    seen: list[CommittedWrites] = []
    while not seen or seen[-1].revision < revision:
        more = watch.next(timeout_seconds)
        assert more, f"nothing after {seen[-1].revision if seen else 'the start'}"
        seen.extend(more)
    return seen


def apply(rows: dict[bytes, bytes], changes: Iterable[CommittedWrites]) -> dict[bytes, bytes]:
    """Returns the naive replica: what a follower of these changes holds."""
    for change in changes:
        for write in change.writes:
            _apply(rows, write)
    return rows


def _apply(rows: dict[bytes, bytes], write: Write) -> None:
    match write:
        case Put(key, value):
            rows[key] = value
        case Delete(key):
            rows.pop(key, None)
