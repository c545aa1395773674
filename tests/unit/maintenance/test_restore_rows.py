"""The rows of a restore are counted as they are read for the first time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kdir.v1 import admin_pb2

from directory.maintenance.backup_stream import Row, digest_of
from directory.maintenance.restore import Backup, DirectoryPaths, losses
from directory.namespace.entry import Kind
from directory.namespace.keys import EVENT, entry_key, grants_key
from directory.namespace.tree_nodes import ROOT_KEY

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


def test_the_root_directory_is_named_and_grants_are_counted_apart_from_entries() -> None:
    topic = entry_key(1, Kind.TOPIC, "t")
    now = [
        (ROOT_KEY, b"policies"),
        (topic, b"topic"),
        (grants_key(0, Kind.DIRECTORY, ""), b"of the root directory"),
        (grants_key(1, Kind.TOPIC, "t"), b"now"),
    ]
    then = [(topic, b"topic"), (grants_key(1, Kind.TOPIC, "t"), b"then")]
    lost = losses(now, then, DirectoryPaths())
    assert str(lost.gone) == "1 entry and 1 entry's grants"
    assert (str(lost.changed), str(lost.come_back)) == ("1 entry's grants", "0 entries")
    assert lost.examples == [
        "the root directory: its policies lost",
        "the root directory: grants lost",
        "t: grants as they were then",
    ]
