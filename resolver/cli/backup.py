"""Verbs for a cluster's store: ``backup``, ``restore``, ``migrate``."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import IO, TYPE_CHECKING, Any, Final

from resolver import units
from resolver.cli.parser import RAW_ARGUMENTS, Argument, Arguments, Option, UsageError, Verb
from resolver.cli.session import ending_in_order
from resolver.cli.streams import (
    CLUSTER,
    CLUSTER_PATH,
    chosen_cluster,
    messages,
    refuse_absent_path,
)
from resolver.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidArgument,
    KdirError,
    Unavailable,
    Unreachable,
)
from resolver.message_values import plain
from resolver.printable import cut_shown
from resolver.unforeseen_errors import raise_if_unwritable

if TYPE_CHECKING:
    from kdir.v1 import admin_pb2

    from resolver.cli.session import Session

__all__ = ["VERBS"]


# -- backup --------------------------------------------------------------------------------------


def _backup(session: Session, arguments: Arguments) -> int:
    target = arguments.one("to")
    if target == "-":
        if sys.stdout.isatty():
            raise UsageError("--to -: a backup is no text for a terminal", verb="backup")
    elif target:
        _refuse_special(target)
        if not arguments.flag("force"):
            _refuse_existing(target)
    chosen = chosen_cluster(session, arguments)
    refuse_absent_path(
        session, arguments, chosen.mount, f"; a file is named by --to {arguments.one('PATH')}"
    )
    servers, cluster = chosen.servers, chosen.requested
    attempts: list[str] = []
    last: KdirError | None = None
    for server in servers:
        try:
            if target == "-":
                writer = _receive(session, server, cluster, sys.stdout.buffer)
                sys.stdout.buffer.flush()
                _print_backup_summary(session, writer, server, "stdout", 0)
            else:
                with ending_in_order():
                    _to_file(session, server, cluster, target, force=arguments.flag("force"))
            return 0
        except (Unavailable, DeadlineExceeded) as error:
            attempts.append(f"{server}: {error}")
            last = error
            if target == "-":
                break  # a part may be written already
    if last is None:
        raise Unreachable("no known servers for this cluster")
    last.attempts = tuple(attempts)
    raise last


def _refuse_special(target: str) -> None:
    """Raises UsageError if the target exists and is not a regular file: the backup would replace a
    device or a FIFO by a file. A symlink counts as its target.
    """
    if os.path.exists(target) and not os.path.isfile(target):
        raise UsageError(
            f"--to {cut_shown(target)}: found no regular file; --to - writes to stdout",
            verb="backup",
        )


def _refuse_existing(target: str) -> None:
    if os.path.lexists(target):
        raise AlreadyExists(f"{target} already exists; --force replaces it")


def _to_file(session: Session, server: str, cluster: str, target: str, *, force: bool) -> None:
    """Writes the backup to a temporary file in the target's folder, and renames it when it is
    complete.
    """
    import tempfile

    folder, name = os.path.split(target)
    try:
        descriptor, part = tempfile.mkstemp(".part", f"{name or 'backup'}.", folder or ".")
    except OSError as error:
        raise_if_unwritable(error, folder or ".")
        raise InvalidArgument(f"{folder or '.'}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            writer = _receive(session, server, cluster, file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        target = target or _name_of(writer.header)
        _put_in_place(part, target, force=force)
    except OSError as error:
        raise_if_unwritable(error, target)
        raise InvalidArgument(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    _print_backup_summary(session, writer, server, target, size)


def _put_in_place(part: str, target: str, *, force: bool) -> None:
    if force:
        os.replace(part, target)
    else:
        try:
            os.link(part, target)  # unlike a rename it never replaces a new file
        except FileExistsError:
            _refuse_existing(target)
            raise
        except OSError:  # a file system without hard links
            _refuse_existing(target)
            os.rename(part, target)
    folder = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _receive(session: Session, server: str, cluster: str, file: IO[bytes]) -> Any:
    """Writes the backup that a server sends; returns the writer.

    Raises:
        Unreachable: the received backup is incomplete.
    """
    from kdir.v1 import admin_pb2

    from resolver.backup_file import BackupWriter, DamagedBackup

    writer = BackupWriter(file)
    request = admin_pb2.BackupRequest(cluster=cluster)
    try:
        for message in messages(session, server, "AdminService.Backup", request):
            writer.write(message)
        writer.close()
    except DamagedBackup as error:
        raise Unreachable(f"the backup from {server} is incomplete: {error}") from error
    return writer


def _name_of(header: admin_pb2.BackupHeader) -> str:
    """Returns a file name such as ``la-tracking-20261120T101502Z.kdir``, from the cluster's name if
    that is valid in a file name, else from its id. So a server's answer cannot choose a folder or
    overwrite another file.

    Raises:
        Unreachable: neither is valid in a file name.
    """
    import time

    name = next(filter(_FILE_NAME.fullmatch, (header.cluster, header.cluster_id)), "")
    if not name:
        raise Unreachable(
            f"the backup is of cluster {cut_shown(header.cluster_id)}, which is no valid file "
            f"name; name a file with --to FILE"
        )
    seconds = min(max(header.taken_at_ms, 0) / 1000, _LAST_SECOND)
    return f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(seconds))}.kdir"


_FILE_NAME: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,199}", re.ASCII)
"""Valid beginnings of a file name: without separators, not hidden, and not like an option."""
_LAST_SECOND: Final = 253_402_300_799
"""Last second of the year 9999, as Unix time."""


def _print_backup_summary(
    session: Session, writer: Any, server: str, target: str, size: int
) -> None:
    out, header = session.out, writer.header
    if target != "stdout":
        if out.structured:
            out.record({"file": target, "bytes": size, "rows": writer.rows} | plain(header))
        else:
            out.line(target)
    out.note(
        f"{header.cluster} ({header.cluster_id}) at revision {header.revision}, from {server}: "
        f"{units.plural(writer.rows, 'row')}",
        "faint",
    )


# -- restore and migrate: directly on the store, by the package ``directory`` ----------------------


def _offline(session: Session, arguments: Arguments) -> int:
    session.out.flush()
    # -P: without it, a folder "directory" in the working directory would be imported.
    verb = arguments.verb.name
    command = [sys.executable, "-P", "-m", "directory", verb, *arguments.many(RAW_ARGUMENTS)]
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted


VERBS: Final = (
    Verb(
        name="backup",
        summary="write the content of a cluster's store to a file",
        run=_backup,
        timeout_seconds=60.0,
        details=(
            "A running server reads its store at one revision; writes continue. The file appears\n"
            "when complete, and ends with a checksum that kdir restore requires. It has the\n"
            "history of changes, not the registered servers and elected roles."
        ),
        arguments=(CLUSTER_PATH,),
        options=(
            Option(
                ("--to",),
                "default: CLUSTER-TIME.kdir in the working directory; - is stdout",
                "FILE",
                completes="file",
            ),
            Option(("--force",), "replace an existing file"),
            CLUSTER,
        ),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir backup --to la-tracking.kdir", "the cluster of the asked server"),
            ("kdir backup /la/tracking", "the cluster of a path, to a file named by the time"),
            ("kdir backup --to - | gpg -e -r ops > la.kdir.gpg", "through a pipe"),
        ),
    ),
    Verb(
        name="restore",
        summary="fill a store from a backup, or from the change log",
        run=_offline,
        destroys=True,
        raw=True,
        details=(
            "Works on the store directly, while no server of it runs. A store that is not empty\n"
            "is not overwritten without --replace, and only by a backup of the same cluster. If\n"
            "killed, run it again to finish. The store starts a new incarnation: older tokens are\n"
            "answered with TOKEN_EXPIRED. --new-life does only that, for a store that was\n"
            "restored by other means without the servers noticing; its servers may run.\n"
            "--from-log makes a lost store from the cluster's change log in Kafka, as its newest\n"
            "checkpoint has it. Answered requests and the history of kdir history begin new."
        ),
        options=(
            Option(("--from",), "the backup; - is stdin", "FILE", completes="file"),
            Option(
                ("--from-log",), "instead of --from: the state in the change log; with --config"
            ),
            Option(("--cluster-id",), "with --from-log: where several logs are of one name", "ID"),
            Option(
                ("--store",), "the target: sqlite:///FILE or etcd://HOST:PORT,…/PREFIX", "ADDRESS"
            ),
            Option(
                ("--config",),
                "instead of --store: a server's config, which names the store",
                "FILE",
                completes="file",
            ),
            Option(("--new-life",), "instead of --from: only start a new incarnation"),
            Option(("--replace",), "overwrite a store that is not empty; asks first"),
            Option(("--plan",), "check everything, show what would be lost, change nothing"),
            Option(("--force",), "also while servers of the store are running"),
        ),
        examples=(
            (
                "kdir restore --from la.kdir --store sqlite:////var/lib/kdir/la.sqlite",
                "into a new store",
            ),
            ("kdir restore --from la.kdir --config la.toml --plan", "dry run"),
            ("kdir restore --from-log --config la.toml", "the store is lost, the log is there"),
            (
                "kdir restore --from la.kdir --config la.toml --replace",
                "show losses, then ask",
            ),
        ),
    ),
    Verb(
        name="migrate",
        summary="move a cluster from one store to another",
        run=_offline,
        destroys=True,
        raw=True,
        details=(
            "From sqlite to etcd, back, or between two of a kind. FROM is sealed (read-only) at\n"
            "once; its servers keep answering reads, marked stale. TO accepts writes when it is\n"
            "complete: never both. If killed, run it again to finish; --abort undoes it until TO\n"
            "accepts writes. Both ask first. Then start the servers with TO."
        ),
        arguments=(
            Argument("FROM", "the store that the cluster is in, such as sqlite:///FILE"),
            Argument("TO", "the store to move it to, such as etcd://HOST:PORT,…/PREFIX"),
        ),
        options=(
            Option(("--abort",), "undo: unseal FROM, empty TO"),
            Option(("--force",), "also while changes wait for the change log"),
            Option(("--plan",), "check everything, change nothing"),
        ),
        examples=(
            (
                "kdir migrate sqlite:///la.sqlite etcd://etcd-1:2379,etcd-2:2379/la",
                "to etcd",
            ),
            ("kdir migrate --abort sqlite:///la.sqlite etcd://etcd-1:2379,etcd-2:2379/la", "undo"),
        ),
    ),
)
