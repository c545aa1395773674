"""Format of a backup file; a reader accepts only what a writer wrote, unchanged and whole.

A backup is one line that identifies it, then ``kdir.v1.BackupResponse`` messages, each after its
length as a protobuf varint: a header, rows in key order, a trailer with the number of rows and a
checksum; all in gzip. A file that is truncated, changed or too long is refused, with the position
in the unpacked data (``gzip -dc`` shows it).
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable, Iterator
from typing import IO, Final, cast

from google.protobuf.message import DecodeError
from kdir.v1 import admin_pb2

__all__ = ["FORMAT", "BackupReader", "BackupWriter", "Checksum", "DamagedBackup", "Row"]

FORMAT: Final = 1
"""``BackupHeader.format`` that this version writes, and the newest that it reads."""
_MAGIC: Final = b"kdir backup: one kdir.v1.BackupResponse after another, each after its length\n"
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Most bytes of one message: a larger length is invalid."""

Row = tuple[bytes, bytes]


class DamagedBackup(Exception):
    """Error of a damaged or incomplete backup; its message is one sentence with the reason and the
    position.
    """


class Checksum:
    """Running SHA-256 of a header and rows, for the trailer."""

    def __init__(self, header: admin_pb2.BackupHeader) -> None:
        self._sha256 = hashlib.sha256()
        self.rows = 0
        self._last = b""
        self._add(header.SerializeToString(deterministic=True))

    def add(self, rows: Iterable[Row]) -> None:
        """Adds rows.

        Raises:
            DamagedBackup: they are not in key order.
        """
        for key, value in rows:
            if key <= self._last and self.rows:
                raise DamagedBackup(f"row {self.rows + 1:,}: key {key!r} is out of order")
            self._last = key
            self.rows += 1
            self._add(key, value)

    def trailer(self) -> admin_pb2.BackupTrailer:
        """Returns the trailer of a backup with these rows."""
        return admin_pb2.BackupTrailer(rows=self.rows, sha256=self._sha256.digest())

    def check(self, trailer: admin_pb2.BackupTrailer) -> None:
        """Compares the rows with the trailer of the backup.

        Raises:
            DamagedBackup: they differ.
        """
        if trailer.rows != self.rows:
            raise DamagedBackup(f"found {self.rows:,} rows; the trailer has {trailer.rows:,}")
        if trailer.sha256 != self._sha256.digest():
            raise DamagedBackup(
                f"the checksum over the header and all {self.rows:,} rows is not the one written"
            )

    def _add(self, *parts: bytes) -> None:
        for part in parts:
            self._sha256.update(len(part).to_bytes(8, "big"))
            self._sha256.update(part)


class BackupWriter:
    """Writer of a backup's messages, which checks them as a reader does."""

    def __init__(self, file: IO[bytes]) -> None:
        self._packed = gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0, filename="")
        self._packed.write(_MAGIC)
        self._checksum: Checksum | None = None
        self.header = admin_pb2.BackupHeader()
        self.whole = False
        """True if the trailer was written, after all other messages."""

    @property
    def rows(self) -> int:
        """Number of rows written."""
        return self._checksum.rows if self._checksum is not None else 0

    def write(self, message: admin_pb2.BackupResponse) -> None:
        """Writes one message.

        Raises:
            DamagedBackup: it is not valid at this place.
            OSError: the file cannot be written.
        """
        self._check(message)
        raw = message.SerializeToString()
        self._packed.write(_varint(len(raw)))
        self._packed.write(raw)

    def close(self) -> None:
        """Finishes the file.

        Raises:
            DamagedBackup: the trailer is missing.
            OSError
        """
        self._packed.close()
        if not self.whole:
            raise DamagedBackup(f"it ends after {self.rows:,} rows, without a trailer")

    def _check(self, message: admin_pb2.BackupResponse) -> None:
        part = message.WhichOneof("part")
        if self.whole:
            raise DamagedBackup("it goes on after its trailer")
        if self._checksum is None:
            if part != "header":
                raise DamagedBackup("it does not begin with a header")
            self.header = message.header
            self._checksum = Checksum(message.header)
        elif part == "rows":
            self._checksum.add((row.key, row.value) for row in message.rows.rows)
        elif part == "trailer":
            self._checksum.check(message.trailer)
            self.whole = True
        else:
            raise DamagedBackup(f"a part that this version does not know, after {self.rows:,} rows")


class BackupReader:
    """Reader of a backup from the beginning of a file. The header is read at once."""

    def __init__(self, file: IO[bytes]) -> None:
        """Reads the header.

        Raises:
            DamagedBackup: not a backup, or of an unknown format.
            OSError: the file cannot be read.
        """
        self._unpacked = cast("IO[bytes]", gzip.GzipFile(fileobj=file, mode="rb"))
        self._at = 0
        self._rows = 0
        first = self._read(len(_MAGIC), "its first line", least=0)
        if not first:
            raise DamagedBackup("not a backup that kdir made: the file is empty")
        if first != _MAGIC:
            raise DamagedBackup(
                "not a backup that kdir made: its first line is not that of a backup"
            )
        message = self._next()
        if message is None or message.WhichOneof("part") != "header":
            raise DamagedBackup(f"the header is missing, at byte {self._at:,} of the unpacked data")
        self.header = message.header
        if not 1 <= self.header.format <= FORMAT:
            raise DamagedBackup(
                f"has format {self.header.format}, made by a newer kdir; this one knows up to"
                f" {FORMAT}"
            )

    def rows(self) -> Iterator[Row]:
        """Yields all rows, in key order. Iterate it once, to the end: the checksum is compared
        last.

        Raises:
            DamagedBackup, OSError: the file is damaged or cannot be read.
        """
        checksum = Checksum(self.header)
        while True:
            begin = self._at
            message = self._next()
            if message is None:
                raise self._cut_off("its trailer is missing")
            try:
                match message.WhichOneof("part"):
                    case "rows":
                        rows = [(row.key, row.value) for row in message.rows.rows]
                        checksum.add(rows)
                        self._rows = checksum.rows
                        yield from rows
                    case "trailer":
                        checksum.check(message.trailer)
                        break
                    case _:
                        raise DamagedBackup("a part that this version does not know")
            except DamagedBackup as reason:
                raise DamagedBackup(f"{reason}, at byte {begin:,} of the unpacked data") from None
        if self._read(1, "the end", least=0):
            raise DamagedBackup(f"it goes on after its trailer, at byte {self._at - 1:,}")

    def _next(self) -> admin_pb2.BackupResponse | None:
        """Returns the next message; None at the end of the file."""
        begin = self._at
        length = shift = 0
        while True:
            byte = self._read(1, "a length", least=0 if shift == 0 else 1)
            if not byte:
                return None
            length |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                break
            if shift > 28:
                length = _MOST_BYTES + 1
                break
        if length > _MOST_BYTES:
            raise self._broken(begin, "expected the length of a message")
        raw = self._read(length, "a message")
        try:
            return admin_pb2.BackupResponse.FromString(raw)
        except DecodeError:
            raise self._broken(begin, f"its {length:,} bytes are no message of a backup") from None

    def _read(self, length: int, what: str, least: int | None = None) -> bytes:
        try:
            found = self._unpacked.read(length)
        except EOFError:
            raise self._cut_off(f"the file ends in {what}") from None
        except gzip.BadGzipFile as error:
            if not self._at:
                raise DamagedBackup(f"not a backup that kdir made: {error}") from None
            raise self._broken(self._at, str(error)) from None
        except zlib.error as error:
            raise self._broken(self._at, f"it cannot be unpacked ({error})") from None
        if len(found) < (length if least is None else least):
            raise self._cut_off(f"the file ends in {what}")
        self._at += len(found)
        return found

    def _cut_off(self, what: str) -> DamagedBackup:
        return DamagedBackup(
            f"cut off after {self._rows:,} rows, at byte {self._at:,} of the unpacked data: {what}"
        )

    def _broken(self, at: int, what: str) -> DamagedBackup:
        return DamagedBackup(
            f"damaged after {self._rows:,} rows, at byte {at:,} of the unpacked data: {what}"
        )


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
