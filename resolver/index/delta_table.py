"""Delta table of the index: its contents and commits.

The table is partitioned by cluster: each data file has topics of one cluster. Columns with one
value for a whole cluster (``row_schema.CLUSTER_COLUMNS``, such as its revision) are partition
values, which are in Delta's log and not in the files. Delta's protocol lets a commit add a file
that the table already has: the newer entry counts ("this allows metadata updates"). So a line of
the log, without rewriting rows, marks a cluster stale or confirms that it has not changed. One
commit can do that for some clusters and replace the files of others. A cluster without topics has
one file without rows, so that it is in the table.

``deltalake`` writes the files and the commits, without Spark and Delta's jars; Spark with those
jars reads the table like any other.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final

from resolver.errors import InvalidArgument, KdirError, Unreachable
from resolver.index.row_schema import (
    CLUSTER_COLUMNS,
    COLUMNS,
    TOPIC_COLUMNS,
    ClusterState,
    arrow_schema,
    partition_values,
    state_from_partition,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction

__all__ = [
    "ClusterFiles",
    "CommitConflict",
    "DataFile",
    "FilePlacement",
    "IndexTable",
    "TableState",
]

_PARTITION_COLUMNS: Final = [column.name for column in CLUSTER_COLUMNS]
_CONFIGURATION: Final = {
    # `--as-of` can go back as long as the log and the files are kept; Delta's own defaults are 30
    # and 7 days. To free space, lower these settings and vacuum.
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": "interval 3650 days",
}
_ESCAPE: Final = re.compile("%[0-9A-Fa-f]{2}")
"""Part of a folder's name that ``deltalake`` decodes, as in a URL."""
_DESCRIPTION: Final = "Every Kafka topic of every cluster, by path. Made by kdir index build."


class CommitConflict(Exception):
    """Error if another commit came first: load the table and merge again."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """Parquet file of the table, by its path below the table's folder."""

    path: str
    size: int
    rows: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ClusterFiles:
    """Files and state of one cluster in the table."""

    state: ClusterState
    files: tuple[DataFile, ...]

    @property
    def rows(self) -> int:
        """Number of topics of the cluster."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class TableState:
    """State of the table at one version; ``version`` is None if there is no table."""

    version: int | None = None
    clusters: Mapping[str, ClusterFiles] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FilePlacement:
    """File that a commit adds or removes, with the state of its cluster: the new one if added, the
    old one if removed.
    """

    file: DataFile
    state: ClusterState
    fresh: bool = True
    """False if the file is in the table already, and only its state changes."""


@dataclass(frozen=True, slots=True)
class IndexTable:
    """Table in a folder, or at a URL that ``deltalake`` supports (``s3://…``)."""

    location: str
    build_id: str = ""
    """Prefix of the names of new files, by which the files of one build are found; it has no
    slash.
    """

    @classmethod
    def at(cls, location: str) -> IndexTable:
        """Returns the table at a folder or URL; a relative folder is below the working directory.

        Raises:
            InvalidArgument: ``deltalake`` would use another folder than this.
        """
        if "://" in location:
            return cls(location)
        folder = str(FilePath(location).absolute())
        if escape := _ESCAPE.search(folder):
            raise InvalidArgument(
                f"--table {folder}: a folder with {escape[0]} in its path cannot hold an index; "
                "name another folder",
                field="table",
            )
        return cls(folder)

    @property
    def folder(self) -> FilePath | None:
        """Folder of the table; None for a URL."""
        return None if "://" in self.location else FilePath(self.location)

    def exists(self) -> bool:
        """True if there is a Delta table at the location.

        Raises:
            Unreachable: the location cannot be read.
        """
        from deltalake import DeltaTable

        with self.reachable():
            return DeltaTable.is_deltatable(self.location)

    @contextmanager
    def reachable(self) -> Iterator[None]:
        """Converts errors of storage and Delta in the block to ``Unreachable``; TableNotFoundError
        is raised unchanged.
        """
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            yield
        except TableNotFoundError:
            raise
        except (OSError, DeltaError) as error:
            hint = "" if self.folder is not None else _CREDENTIALS
            raise Unreachable(
                f"the index at {self.location} cannot be reached: {one_sentence(error)}{hint}",
                index=self.location,
            ) from error

    def refuse_unwritable(self) -> None:
        """Creates the table's folder and checks that it can be written; does not check a URL.

        Raises:
            InvalidArgument: the folder cannot be created, or written.
        """
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise InvalidArgument(
                f"--table {self.location}: cannot be written: {error.strerror}", field="table"
            ) from error

    def open(self) -> DeltaTable:
        """Returns the table as it is now.

        Raises:
            InvalidArgument: there is no table, or it has not the columns of this version's index.
            Unreachable: the location cannot be read.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            with self.reachable():
                table = DeltaTable(self.location)
        except TableNotFoundError as error:
            raise InvalidArgument(
                f"no index at {self.location}: make one with kdir index build --table "
                f"{self.location}"
            ) from error
        columns = {field.name for field in table.schema().fields}
        missing = [column.name for column in COLUMNS if column.name not in columns]
        if missing:
            raise InvalidArgument(
                f"the Delta table at {self.location} is no index of this version: it has no column "
                f"{missing[0]}; name another folder, or build again"
            )
        return table

    def load(self) -> TableState:
        """Returns the state of the table now; an empty one without a version if there is none."""
        if not self.exists():
            return TableState()
        table = self.open()
        return TableState(table.version(), clusters_of(table))

    def write(self, cluster_id: str, batches: Iterable[pa.RecordBatch]) -> DataFile:
        """Writes topics of one cluster to a new file, which readers do not see before a commit adds
        it.

        Every call makes a new file name, so a task that runs twice does no harm.
        """
        import pyarrow.parquet

        folder = re.sub(r"[^A-Za-z0-9._-]", "_", cluster_id)
        name = "-".join(filter(None, (self.build_id, uuid.uuid4().hex)))
        path = f"cluster_id={folder}/{name}.parquet"
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        files = self._files()
        rows = 0
        try:
            with (
                files.open_output_stream(path) as stream,
                pyarrow.parquet.ParquetWriter(
                    stream, arrow_schema(TOPIC_COLUMNS), compression="zstd"
                ) as writer,
            ):
                for batch in _larger(batches):
                    writer.write_table(batch)
                    rows += batch.num_rows
        except BaseException:
            self.discard([DataFile(path, 0, 0, 0)])
            raise
        return DataFile(path, files.get_file_info(path).size, rows, time.time_ns() // 1_000_000)

    def discard(self, files: Iterable[DataFile]) -> None:
        """Removes files that no commit has, ignoring errors: files that stay only cost space, and a
        full vacuum removes them (docs/how-to/search-all-clusters.md).
        """
        self._delete(file.path for file in files)

    def discard_build(self) -> None:
        """Removes all files of this build that the table does not have, including those of tasks
        that were killed. Does nothing if the table cannot be read. No task of the build may be
        running.
        """
        import pyarrow.fs
        from deltalake.exceptions import DeltaError

        if not self.build_id:
            return
        with suppress(OSError, DeltaError, KdirError):
            named = {file.path for one in self.load().clusters.values() for file in one.files}
            every = pyarrow.fs.FileSelector("", allow_not_found=True, recursive=True)
            paths = [one.path for one in self._files().get_file_info(every) if one.is_file]
            mine = re.compile(f"cluster_id=[^/]*/{re.escape(self.build_id)}-")
            self._delete(path for path in paths if mine.match(path) and path not in named)

    def _delete(self, paths: Iterable[str]) -> None:
        from deltalake.exceptions import DeltaError

        with suppress(OSError, DeltaError):
            files = self._files()
            for path in paths:
                with suppress(OSError, DeltaError):
                    files.delete_file(path)

    def missing_files(self, files: Sequence[DataFile]) -> list[DataFile]:
        """Returns the files that storage does not have; none if it cannot be listed."""
        import pyarrow.fs

        folder = self.folder
        if folder is not None:
            return [one for one in files if not os.path.lexists(folder / one.path)]
        every = pyarrow.fs.FileSelector("", allow_not_found=True, recursive=True)
        try:
            kept = {one.path for one in self._files().get_file_info(every)}
        except OSError:
            return []
        return [one for one in files if one.path not in kept]

    def first_unreadable(self, files: Iterable[DataFile]) -> tuple[DataFile, Exception] | None:
        """Returns the first file that cannot be read as topics, with the error; None = all can be
        read.
        """
        import pyarrow as pa
        import pyarrow.parquet

        storage = self._files()
        for one in files:
            try:
                pyarrow.parquet.read_table(one.path, filesystem=storage)
            except (pa.ArrowException, OSError) as error:
                return one, error
        return None

    def _files(self) -> pyarrow.fs.FileSystem:
        import pyarrow.fs
        from deltalake.fs import DeltaStorageHandler

        return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.location))

    def commit(
        self,
        base: TableState,
        adds: Sequence[FilePlacement],
        removes: Sequence[FilePlacement],
        note: str,
    ) -> int:
        """Makes one commit on top of ``base``; returns the new version.

        Raises:
            CommitConflict: the table has a newer version than ``base``.
            Unreachable: the location cannot be reached, or the table is gone.
        """
        from deltalake import CommitProperties
        from deltalake.exceptions import TableNotFoundError
        from deltalake.transaction import AddAction

        # deltalake must not retry: after another commit the findings must be merged again.
        properties = CommitProperties(custom_metadata={"kdir": note}, max_commit_retries=0)
        added = [
            AddAction(
                one.file.path,
                one.file.size,
                partition_values(one.state),
                one.file.modified_ms,
                one.fresh,
                json.dumps({"numRecords": one.file.rows}),
            )
            for one in adds
        ]
        try:
            with self.reachable():
                if base.version is None:
                    self._create(added, properties)
                    return 0
                self._append(base.version, added, removes, properties)
                return base.version + 1
        except TableNotFoundError as error:
            raise Unreachable(
                f"the index at {self.location} was removed while it was built: build it again",
                index=self.location,
            ) from error

    def _create(self, added: list[AddAction], properties: CommitProperties) -> None:
        """Creates the table; raises CommitConflict if another writer did."""
        from deltalake import Schema
        from deltalake.exceptions import DeltaError
        from deltalake.transaction import create_table_with_add_actions

        try:
            create_table_with_add_actions(
                self.location,
                Schema.from_arrow(arrow_schema()),
                added,
                mode="error",
                partition_by=_PARTITION_COLUMNS,
                description=_DESCRIPTION,
                configuration=_CONFIGURATION,
                commit_properties=properties,
            )
        except DeltaError as error:
            if self.exists():
                raise CommitConflict from error
            raise

    def _append(
        self,
        version: int,
        added: Sequence[AddAction],
        removes: Sequence[FilePlacement],
        properties: CommitProperties,
    ) -> None:
        """Commits the version after ``version``; raises CommitConflict if another writer did."""
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import RemoveAction

        now_ms = time.time_ns() // 1_000_000
        removed = [
            RemoveAction(one.file.path, True, now_ms, one.file.size, partition_values(one.state))
            for one in removes
        ]
        table = DeltaTable(self.location, version=version)
        try:
            table.create_write_transaction(
                [*added, *removed],
                "append",
                table.schema(),
                partition_by=_PARTITION_COLUMNS,
                commit_properties=properties,
            )
        except CommitFailedError as error:
            if DeltaTable(self.location).version() != version:
                raise CommitConflict from error
            raise


_CREDENTIALS: Final = (
    "; credentials come from the environment, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
    "AWS_REGION for s3://"
)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


def one_sentence(error: BaseException) -> str:
    """Returns a library's error in one line: its first line, and the last one, which has the
    reason.
    """
    lines = [one.strip(" ↳.") for one in _COLOURS.sub("", str(error)).splitlines()]
    found = [one for one in lines if one] or [type(error).__name__]
    return found[0] if len(found) == 1 else f"{found[0]}: {found[-1]}"


def clusters_of(table: DeltaTable) -> dict[str, ClusterFiles]:
    """Returns the clusters of a loaded table, by cluster id."""
    import pyarrow as pa

    states: dict[str, ClusterState] = {}
    files: dict[str, list[DataFile]] = {}
    for row in pa.table(table.get_add_actions()).to_pylist():
        state = state_from_partition(row["partition"])
        states[state.cluster_id] = state
        files.setdefault(state.cluster_id, []).append(
            DataFile(row["path"], row["size_bytes"], row["num_records"], _ms(row))
        )
    return {
        cluster_id: ClusterFiles(state, tuple(files[cluster_id]))
        for cluster_id, state in states.items()
    }


def _ms(row: Mapping[str, Any]) -> int:
    moment = row["modification_time"]
    if isinstance(moment, datetime):
        return int(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1000)
    return int(moment)


def _larger(batches: Iterable[pa.RecordBatch], rows: int = 100_000) -> Iterator[pa.Table]:
    """Yields the same rows in tables of about ``rows``, since one row group per page would be too
    small.
    """
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= rows:
            yield pa.Table.from_batches(held)
            held, count = [], 0
    if held:
        yield pa.Table.from_batches(held)
