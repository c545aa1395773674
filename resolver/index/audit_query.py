"""Runs one SQL query over changes by DuckDB, without access to files and the network.

The changes are loaded into a table on disk, in a temporary folder: a query may read them more than
once, and memory stays bounded however many there are.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from resolver.changes.audit import CHANGE_COLUMNS, UNREAD_COLUMNS, UnreadLog, unread_rows
from resolver.errors import InvalidArgument
from resolver.index.row_schema import arrow_schema

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["AuditDatabase", "check_query"]

_ROWS: Final = 1_000
_FENCES: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # Otherwise DuckDB would search this program's variables for an unknown table.
    "python_enable_replacements": "false",
}
_MEMORY: Final = "512MB"
"""DuckDB's memory limit; one change may have 8 MiB."""
_BOUNDS: Final = {
    "memory_limit": _MEMORY,
    # Number of row groups that are written together; DuckDB's default is 5.
    "write_buffer_row_group_count": "1",
}
_ROW_GROUP: Final = 16_384
"""Number of rows in a row group, which stay in memory until they are written; DuckDB's default is
122,880.
"""
_DROP_ROWS: Final = 50_000
"""Number of added rows after which written rows are dropped from memory; DuckDB alone would keep
them.
"""
_KEPT: Final = "16MB"
"""DuckDB's memory limit while written rows are dropped from memory."""


def check_query(sql: str) -> None:
    """Checks a query on empty tables, so that a wrong one is refused before anything is read.

    Raises:
        InvalidArgument: DuckDB refuses the query (the error has DuckDB's message), or it is not one
            statement.
    """
    import duckdb

    with _duckdb_errors():
        statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise InvalidArgument(f"SQL: found {len(statements)} statements; expected one query")
    with AuditDatabase() as database:
        for _ in database.query(sql):
            pass


class AuditDatabase:
    """Database with the tables ``changes`` and ``unread``; it exists while the block runs."""

    def __init__(self) -> None:
        self._folder = ""
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._is_fenced = False
        self._rows_since_drop = 0

    def __enter__(self) -> Self:
        import duckdb

        self._folder = tempfile.mkdtemp(prefix="kdir-audit-")
        try:
            spilled = {"temp_directory": f"{self._folder}/spilled", **_BOUNDS}
            self._connection = duckdb.connect(config={**_FENCES, **spilled})
            file = f"{self._folder}/changes.duckdb".replace("'", "''")
            self._open.execute(f"ATTACH '{file}' AS audit (ROW_GROUP_SIZE {_ROW_GROUP})")
            self._open.execute("USE audit")
            self._open.execute("SET TimeZone = 'UTC'")
            self._make("changes", arrow_schema(CHANGE_COLUMNS))
            self._make("unread", arrow_schema(UNREAD_COLUMNS))
            self._open.execute("BEGIN")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _open(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            raise RuntimeError("used outside its block")
        return self._connection

    def _make(self, table: str, schema: pa.Schema) -> None:
        self._open.register("batch", schema.empty_table())
        self._open.execute(f"CREATE TABLE {table} AS FROM batch")  # the name is a constant
        self._open.unregister("batch")

    def add_changes(self, batch: pa.RecordBatch) -> None:
        """Adds rows of ``changes``.

        Raises:
            InvalidArgument: the rows cannot be written to disk.
        """
        self._add("changes", batch)
        self._rows_since_drop += batch.num_rows
        if self._rows_since_drop >= _DROP_ROWS:
            self._drop_written()

    def _drop_written(self) -> None:
        """Drops the rows from memory that are written to disk."""
        import duckdb

        with closing(self._open.cursor()) as beside:  # an error would end the transaction
            with suppress(duckdb.OutOfMemoryException):  # more memory is in use
                beside.execute(f"SET memory_limit = '{_KEPT}'")
            beside.execute(f"SET memory_limit = '{_MEMORY}'")
        self._rows_since_drop = 0

    def add_unread(self, unread: list[UnreadLog]) -> None:
        """Adds rows of ``unread``; raises the same errors as ``add_changes``."""
        self._add("unread", unread_rows(unread))

    def _add(self, table: str, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        with self._disk_errors():
            # A registered batch would be kept until the transaction ends, even if it is
            # unregistered.
            self._open.from_arrow(pa.Table.from_batches([batch])).insert_into(table)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            raise InvalidArgument(
                f"the changes cannot be written to {self._folder}: {_one_line(str(error))}; TMPDIR "
                f"names another folder for them"
            ) from error

    def query(self, sql: str) -> Iterator[tuple[list[str], list[dict[str, Any]]]]:
        """Yields pairs of column names and a page of rows; the first page is empty. A statement
        without a result yields nothing. Rows must be added before the first query.

        Columns of the same name are numbered.

        Raises:
            InvalidArgument: DuckDB refuses the query, or fails; the error has DuckDB's message.
        """
        if not self._is_fenced:
            with self._disk_errors():
                self._open.execute("COMMIT")
            self._open.execute("SET enable_external_access = false")
            self._open.execute("SET lock_configuration = true")
            self._is_fenced = True
        with _duckdb_errors():
            answer: Any = self._open.sql(sql)
            if answer is None:  # a statement without rows
                return
            reader = answer.to_arrow_reader(_ROWS)
        names = _numbered(reader.schema.names)
        yield names, []
        while True:
            with _duckdb_errors():
                batch = next(reader, None)
            if batch is None:
                return
            yield names, _rows_of(batch.rename_columns(names))


def _rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="lossy")
    except (ArithmeticError, TypeError, ValueError) as error:  # such as for the date 'infinity'
        raise InvalidArgument(
            f"SQL: a value cannot be shown: {error}; as text it can: its column::VARCHAR"
        ) from error
    return rows


def _numbered(names: list[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, one = 1, name
        while one in found:
            number += 1
            one = f"{name}_{number}"
        found.append(one)
    return found


@contextmanager
def _duckdb_errors() -> Iterator[None]:
    """Raises an error of DuckDB or Arrow as InvalidArgument, with its message."""
    import duckdb
    import pyarrow as pa

    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        raise InvalidArgument(f"SQL: {_one_line(str(error))}") from error


def _one_line(text: str) -> str:
    """Returns DuckDB's message without the lines that point into the query."""
    message = text.partition("\nLINE ")[0]
    return "; ".join(line.strip() for line in message.splitlines() if line.strip())
