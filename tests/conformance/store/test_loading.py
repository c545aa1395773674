"""Loading at one revision, and reading for maintenance."""

import threading

from directory.store.base import Row, Store
from tests.conformance.store.places import Place
from tests.conformance.store.reading import (
    apply,
    everything,
    following,
    put,
    put_many,
    remove,
    until,
)


def test_pages_are_of_one_revision_while_writers_go_on(place: Place, store: Store) -> None:
    put_many(store, ((b"row/%06d" % n, b"0") for n in range(12_000)))
    other = place.open()
    stop = threading.Event()
    loads: list[tuple[int, dict[bytes, bytes]]] = []

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            # The first key of the first page, the last of the last, and one more in between.
            put(
                other, (b"a", b"%d" % n), (b"z", b"%d" % n), (b"row/%06d" % (n % 12_000), b"%d" % n)
            )

    thread = threading.Thread(target=write)
    loading = store.load()
    replayed = dict(row for page in loading.pages() for row in page)
    with following(store, loading.revision, loading.commit_id) as watch:
        thread.start()
        try:
            for _ in range(5):
                loading = store.load()
                rows = dict(row for page in loading.pages() for row in page)
                assert rows.get(b"a") == rows.get(b"z")
                loads.append((loading.revision, rows))
        finally:
            stop.set()
            thread.join()
        last = put(store, (b"end", b""))
        changes = until(watch, last.revision)
    # The naive replica, taken exactly to each of these revisions, holds the same.
    for revision, rows in loads:
        apply(replayed, [change for change in changes if change.revision <= revision])
        changes = [change for change in changes if change.revision > revision]
        assert replayed == rows
    assert len({revision for revision, _ in loads}) > 1


def test_a_load_goes_on_from_where_a_watch_begins(store: Store) -> None:
    put(store, (b"a", b"1"), (b"b", b"1"))
    loading = store.load()
    with following(store, loading.revision, loading.commit_id) as watch:
        put(store, (b"b", b"2"))
        last = remove(store, b"a")
        rows = dict(row for page in loading.pages() for row in page)
        assert rows == {b"a": b"1", b"b": b"1"}
        assert apply(rows, until(watch, last.revision)) == everything(store) == {b"b": b"2"}


def test_only_the_asked_prefixes_are_loaded_in_key_order(store: Store) -> None:
    put(store, *((key, b"") for key in (b"a/1", b"b/1", b"b/2", b"c/1", b"e/1", b"e", b"f")))
    rows = [key for page in store.load([b"e/", b"b/"]).pages() for key, _ in page]
    assert rows == [b"b/1", b"b/2", b"e/1"]


def test_a_load_that_is_given_up_is_in_nobodys_way(store: Store) -> None:
    put_many(store, ((b"%d" % n, b"x") for n in range(6_000)))
    pages = store.load().pages()
    next(pages)
    del pages
    put(store, (b"later", b""))
    assert b"later" in everything(store)


def test_reading_by_pages(store: Store) -> None:
    first = put(store, *((b"p/%03d" % n, b"%d" % n) for n in range(25)))
    put(store, (b"q", b""), (b"p", b""))
    second = put(store, (b"p/007", b"new"))
    seen: list[Row] = []
    after = b""
    while page := store.read(b"p/", limit=10, after=after):
        assert len(page) <= 10
        seen.extend(page)
        after = page[-1].key
    assert [row.key for row in seen] == [b"p/%03d" % n for n in range(25)]
    assert (seen[7].value, seen[7].revision) == (b"new", second.revision)
    assert seen[8].revision == first.revision
