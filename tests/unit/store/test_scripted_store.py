"""The tests' store in memory and the sqlite store say the same, whatever is committed."""

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from directory.store.base import (
    Committed,
    Delete,
    Guard,
    KeyEquals,
    Put,
    Transaction,
    UnchangedSince,
)
from directory.store.sqlite.store import SqliteStore
from tests.unit.store.scripted_store import ScriptedStore

KEYS = st.sampled_from([b"a", b"a/", b"a/1", b"a/2", b"a0", b"b", b"a/\xff", b"\xff", b"\xff\xff"])
VALUES = st.sampled_from([b"", b"1", b"2"])
GUARDS: st.SearchStrategy[Guard] = st.one_of(
    st.builds(KeyEquals, KEYS, st.none() | VALUES),
    st.builds(UnchangedSince, st.sampled_from([b"", b"a", b"a/", b"\xff"]), st.integers(0, 12)),
)
WRITES = st.lists(
    st.builds(Put, KEYS, VALUES) | st.builds(Delete, KEYS),
    max_size=4,
    unique_by=lambda write: write.key,
)
TRANSACTIONS = st.lists(
    st.builds(Transaction, st.lists(GUARDS, max_size=2).map(tuple), WRITES.map(tuple)), max_size=12
)


@settings(max_examples=60)
@given(TRANSACTIONS)
def test_sqlite_does_what_a_dictionary_does(transactions: list[Transaction]) -> None:
    naive = ScriptedStore()
    with (
        TemporaryDirectory() as folder,
        closing(SqliteStore(Path(folder) / "s.db", "la")) as store,
    ):
        for transaction in transactions:
            expected = naive.commit(transaction)
            done = store.commit(transaction)
            if isinstance(expected, Committed):
                assert isinstance(done, Committed)
                assert done.revision == expected.revision
            else:
                assert done == expected
        assert store.read(b"") == naive.read(b"")
        assert [r for page in store.load([b"a/", b"b"]).pages() for r in page] == [
            r for page in naive.load([b"a/", b"b"]).pages() for r in page
        ]
        with closing(store.watch(0, "")) as watch, closing(naive.watch(0, "")) as expected_watch:
            seen = watch.next(0)
            wanted = expected_watch.next(0)
        assert [(c.revision, set(c.writes)) for c in seen] == [
            (c.revision, set(c.writes)) for c in wanted
        ]
