"""The rows of a restore are counted as they are read for the first time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kdir.v1 import admin_pb2

from directory.maintenance.backup_stream import Row, digest_of
from directory.maintenance.restore import Backup
from directory.namespace.keys import EVENT

ROWS = [(EVENT + b"1", b"a"), (b"f/x", b"b")]


@pytest.mark.parametrize("is_read", [True, False])
def test_rows_are_read_once_to_be_restored_and_counted(*, is_read: bool) -> None:
    reads = []

    def rows() -> Iterator[Row]:
        reads.append(1)
        return iter(ROWS)

    backup = Backup(admin_pb2.BackupHeader(), rows, "change log")
    if is_read:
        assert list(backup.rows()) == ROWS
    assert str(backup.topic_counts) == "1 change of history, 1 other fact"
    assert len(reads) == 1
    assert backup.digest == backup.digest == digest_of(ROWS)
    assert len(reads) == 2


def test_rows_that_were_read_in_part_are_not_counted_as_all() -> None:
    backup = Backup(admin_pb2.BackupHeader(), lambda: iter(ROWS))
    next(backup.rows())
    assert backup.topic_counts.rows == len(ROWS)
