"""A backup is read only if it is what was written; else it is said where it is not."""

import gzip
import io
import random

import pytest
from kdir.v1 import admin_pb2

from resolver.backup_file import BackupReader, BackupWriter, Checksum, DamagedBackup, Row

HEADER = admin_pb2.BackupHeader(
    format=1, cluster_id="kc-aaaaaaaaaa", cluster="la", incarnation="i1", revision=7, taken_at_ms=5
)
ROWS = [(b"e/%04d" % number, b"value %d" % number) for number in range(1_200)]


def messages(
    rows: list[Row] = ROWS, header: admin_pb2.BackupHeader = HEADER
) -> list[admin_pb2.BackupResponse]:
    checksum = Checksum(header)
    made = [admin_pb2.BackupResponse(header=header)]
    for start in range(0, len(rows), 500):
        part = rows[start : start + 500]
        checksum.add(part)
        made.append(
            admin_pb2.BackupResponse(
                rows=admin_pb2.BackupRows(
                    rows=[admin_pb2.BackupRow(key=key, value=value) for key, value in part]
                )
            )
        )
    return [*made, admin_pb2.BackupResponse(trailer=checksum.trailer())]


def written(parts: list[admin_pb2.BackupResponse]) -> bytes:
    file = io.BytesIO()
    writer = BackupWriter(file)
    for part in parts:
        writer.write(part)
    writer.close()
    return file.getvalue()


def forged(parts: list[admin_pb2.BackupResponse]) -> bytes:
    """Returns a backup as a writer without checks would write it."""
    plain = gzip.decompress(written(messages()))
    first = plain[: plain.index(b"\n") + 1]
    body = b""
    for part in parts:
        raw = part.SerializeToString()
        length = len(raw)
        while length > 0x7F:
            body += bytes((length & 0x7F | 0x80,))
            length >>= 7
        body += bytes((length,)) + raw
    return gzip.compress(first + body)


def read(raw: bytes) -> list[Row]:
    return list(BackupReader(io.BytesIO(raw)).rows())


def test_what_was_written_is_read() -> None:
    raw = written(messages())
    reader = BackupReader(io.BytesIO(raw))
    assert reader.header == HEADER
    assert list(reader.rows()) == ROWS
    assert written(messages()) == raw  # nothing of the moment is in it
    assert gzip.decompress(raw).startswith(b"kdir backup: ")
    assert read(forged(messages())) == ROWS


def test_an_empty_cluster_has_a_backup_too() -> None:
    assert read(written(messages([]))) == []


def test_a_backup_that_is_cut_off_anywhere_is_refused() -> None:
    raw = written(messages())
    for end in [*range(40), *range(40, len(raw) - 1, 37), len(raw) - 1]:
        with pytest.raises(DamagedBackup):
            read(raw[:end])


def test_where_it_was_cut_off_is_shown() -> None:
    plain = gzip.decompress(written(messages()))
    half = gzip.compress(plain[: len(plain) // 2])
    with pytest.raises(DamagedBackup, match=r"cut off after 500 rows, at byte [\d,]+ of the"):
        read(half)
    with pytest.raises(DamagedBackup, match=r"cut off after 1,200 rows.*its trailer is missing"):
        read(forged(messages()[:-1]))
    with pytest.raises(DamagedBackup, match="the file ends in"):
        read(written(messages())[:-20])


def test_a_changed_byte_is_noticed_wherever_it_is() -> None:
    raw = written(messages())
    chance = random.Random(3)
    # The ten bytes of gzip's own header say how it was made, and when.
    places = {10, len(raw) - 1, len(raw) - 8, *chance.sample(range(10, len(raw)), 150)}
    noticed = 0
    for place in places:
        changed = bytearray(raw)
        changed[place] ^= 1 << chance.randrange(8)
        try:
            assert read(bytes(changed)) == ROWS  # a bit that fills up a byte means nothing
        except DamagedBackup:
            noticed += 1
    assert noticed > len(places) - 3


@pytest.mark.parametrize(
    ("field", "value"),
    [("cluster_id", "kc-bbbbbbbbbb"), ("cluster", "ny"), ("revision", 8), ("incarnation", "i2")],
)
def test_a_header_of_another_is_noticed(field: str, value: object) -> None:
    parts = messages()
    setattr(parts[0].header, field, value)
    with pytest.raises(DamagedBackup, match="the checksum over the header and all 1,200 rows"):
        read(forged(parts))


def test_changed_rows_are_noticed() -> None:
    parts = messages()
    parts[2].rows.rows[3].value = b"forged"
    with pytest.raises(DamagedBackup, match=r"the checksum .*, at byte [\d,]+"):
        read(forged(parts))
    parts = messages()
    del parts[2]
    with pytest.raises(DamagedBackup, match="found 700 rows; the trailer has 1,200"):
        read(forged(parts))
    parts = messages()
    parts[1], parts[2] = parts[2], parts[1]
    with pytest.raises(DamagedBackup, match="row 501: key b'e/0000' is out of order"):
        read(forged(parts))
    parts = messages()
    with pytest.raises(DamagedBackup, match="it goes on after its trailer"):
        read(forged([*parts, parts[1]]))


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "the file is empty"),
        (b"SQLite format 3\0", "Not a gzipped file"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (gzip.compress(b"hello" * 100, mtime=0), "its first line is not that of a backup"),
    ],
)
def test_other_files_are_no_backups(raw: bytes, complaint: str) -> None:
    with pytest.raises(DamagedBackup, match=complaint):
        read(raw)


def test_a_backup_of_a_newer_form_is_refused_by_number() -> None:
    header = admin_pb2.BackupHeader()
    header.CopyFrom(HEADER)
    header.format = 2
    with pytest.raises(DamagedBackup, match="format 2, made by a newer kdir; this one knows up to"):
        read(forged(messages(header=header)))


def test_a_length_that_is_none_is_refused_before_it_is_read() -> None:
    plain = gzip.decompress(written(messages()))
    start = plain.index(b"\n") + 1
    for length in (b"\xff\xff\xff\xff\x0f", b"\xff" * 20):
        with pytest.raises(DamagedBackup, match="expected the length of a message"):
            read(gzip.compress(plain[:start] + length + plain[start:]))


def test_a_writer_refuses_what_a_reader_would() -> None:
    parts = messages()
    for wrong, complaint in (
        (parts[:-1], "it ends after 1,200 rows, without a trailer"),
        (parts[1:], "it does not begin with a header"),
        ([*parts, parts[-1]], "it goes on after its trailer"),
        ([*parts[:2], parts[1], *parts[2:]], "out of order"),
        ([parts[0], *parts[2:]], "found 700 rows"),
        ([], "it ends after 0 rows"),
    ):
        with pytest.raises(DamagedBackup, match=complaint):
            written(wrong)
