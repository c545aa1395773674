"""The temporary database that a change log is read into."""

from __future__ import annotations

import pytest

from directory.maintenance.log_backup import new_table, scratch


def test_mappings_of_one_database_are_apart() -> None:
    with scratch() as database:
        one, other = new_table(database), new_table(database)
        one["a"], other["a"] = b"one", b"other"
        assert dict(one.items()) == {"a": b"one"}
        assert other.pop("a") == b"other"
        assert other.pop("a", None) is None
        assert other.get("a") is None
        assert len(one) == 1
        one.clear()
        assert not list(one)


def test_a_full_disk_is_reported_as_such() -> None:
    with pytest.raises(OSError, match="full; SQLITE_TMPDIR names another folder"):
        fill_small_database()


def fill_small_database() -> None:
    with scratch() as database:
        database.execute("PRAGMA max_page_count = 20")
        table = new_table(database)
        for number in range(10_000):
            table[str(number)] = bytes(100)
