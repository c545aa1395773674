"""Verbs that keep a cluster's store: ``backup``, ``restore``, ``migrate``."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import IO, TYPE_CHECKING, Any, Final

from resolver.cli import units
from resolver.cli.output import plain
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.streams import CLUSTER_PATH, meant, messages
from resolver.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidArgument,
    KdirError,
    Unavailable,
    Unreachable,
)
from resolver.printable import cut_shown

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
    elif target and not arguments.flag("force"):
        _refuse_existing(target)
    servers, cluster = meant(session, arguments)
    attempts: list[str] = []
    last: KdirError | None = None
    for server in servers:
        try:
            if target == "-":
                writer = _receive(session, server, cluster, sys.stdout.buffer)
                sys.stdout.buffer.flush()
                _told(session, writer, server, "stdout", 0)
            else:
                _to_file(session, server, cluster, target, force=arguments.flag("force"))
            return 0
        except (Unavailable, DeadlineExceeded) as error:
            attempts.append(f"{server}: {error}")
            last = error
            if target == "-":
                break  # some of it may be written
    if last is None:
        raise Unreachable("no server of it is known")
    last.attempts = tuple(attempts)
    raise last


def _refuse_existing(target: str) -> None:
    if os.path.lexists(target):
        raise AlreadyExists(f"{target} is there already; --force replaces it")


def _to_file(session: Session, server: str, cluster: str, target: str, *, force: bool) -> None:
    """Written beside the target and put there when it is whole."""
    import tempfile

    folder, name = os.path.split(target)
    try:
        descriptor, part = tempfile.mkstemp(".part", f"{name or 'backup'}.", folder or ".")
    except OSError as error:
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
        raise InvalidArgument(f"{target}: cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
    _told(session, writer, server, target, size)


def _put_in_place(part: str, target: str, *, force: bool) -> None:
    if force:
        os.replace(part, target)
    else:
        try:
            os.link(part, target)  # unlike a rename it never replaces what came meanwhile
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
    """Writes what a server sends; the writer.

    Raises:
        Unreachable: what came is not whole.
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
        raise Unreachable(f"the backup that {server} sent is not whole: {error}") from error
    return writer


def _name_of(header: admin_pb2.BackupHeader) -> str:
    """Returns ``la-tracking-20261120T101502Z.kdir``: the cluster's name where it is one as configs
    have them, else its id. A server's words choose no folder and overwrite no other file.

    Raises:
        Unreachable: neither can be a file's name.
    """
    import time

    name = next(filter(_FILE_NAME.fullmatch, (header.cluster, header.cluster_id)), "")
    if not name:
        raise Unreachable(
            f"the backup is of cluster {cut_shown(header.cluster_id)}, of which no file can be "
            f"named; --to FILE says where it goes"
        )
    seconds = min(max(header.taken_at_ms, 0) / 1000, _LAST_SECOND)
    return f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(seconds))}.kdir"


_FILE_NAME: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,199}", re.ASCII)
"""What a file may be named for: no separators, nothing hidden, nothing like an option."""
_LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999."""


def _told(session: Session, writer: Any, server: str, target: str, size: int) -> None:
    out, header = session.out, writer.header
    if target != "stdout":
        if out.structured:
            out.record({"file": target, "bytes": size, "rows": writer.rows} | plain(header))
        else:
            out.line(target)
    out.note(
        f"{header.cluster} ({header.cluster_id}) at revision {header.revision}, from {server}: "
        f"{units.count(writer.rows)} rows",
        "faint",
    )


# -- restore and migrate: straight at the store, by the package that knows stores ------------------


def _offline(session: Session, arguments: Arguments) -> int:
    session.out.flush()
    # -P: a folder named "directory" where the user happens to stand is not ours.
    verb = arguments.verb.name
    command = [sys.executable, "-P", "-m", "directory", verb, *arguments.many("ARGUMENT")]
    os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted


VERBS: Final = (
    Verb(
        name="backup",
        summary="write all that a cluster's store holds to a file",
        run=_backup,
        timeout_seconds=60.0,
        details=(
            "Asks a running server, which reads its store at one revision; writes go on.\n"
            "The file appears when it is whole, and ends with a checksum: kdir restore reads\n"
            "nothing else. Registered servers and elected roles are not in it; history is."
        ),
        arguments=(CLUSTER_PATH,),
        options=(
            Option(
                ("--to",),
                "default: CLUSTER-TIME.kdir in the working directory; - is stdout",
                "FILE",
                completes="file",
            ),
            Option(("--force",), "replace a file that is there"),
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
        summary="fill a store from a backup",
        run=_offline,
        raw=True,
        details=(
            "Works at the store itself, while no server of it runs. A store that holds something\n"
            "is left as it is unless --replace is said, and the cluster is the same. Killed at\n"
            "any moment, saying it again finishes it. The store then begins a new life: tokens\n"
            "of before are answered with TOKEN_EXPIRED. --new-life does only that, of a store\n"
            "that was put back by other means and nobody noticed; its servers may run."
        ),
        arguments=(Argument("ARGUMENT", "as below", least=0, most=None),),
        options=(
            Option(("--from",), "the backup; - is stdin", "FILE", completes="file"),
            Option(
                ("--store",), "where to: sqlite:///FILE or etcd://HOST:PORT,…/PREFIX", "ADDRESS"
            ),
            Option(
                ("--config",),
                "instead of --store: a server's, which says it",
                "FILE",
                completes="file",
            ),
            Option(("--new-life",), "instead of --from: only expire the tokens of before"),
            Option(("--replace",), "also where the store holds something, which is lost"),
            Option(("--plan",), "check all, say what would be done and lost, change nothing"),
            Option(("--force",), "also while servers of the store are running"),
        ),
        examples=(
            (
                "kdir restore --from la.kdir --store sqlite:////var/lib/kdir/la.sqlite",
                "into a new store",
            ),
            ("kdir restore --from la.kdir --config la.toml --plan", "what would be done, and lost"),
            ("kdir restore --from la.kdir --config la.toml --replace", "do it"),
        ),
    ),
    Verb(
        name="migrate",
        summary="move a cluster from one store to another",
        run=_offline,
        raw=True,
        details=(
            "From sqlite to etcd, back, or between two of a kind. FROM takes no changes from the\n"
            "first moment on, and its servers go on reading, marked stale. TO takes changes when\n"
            "it is whole: at no time both do. Killed at any moment, saying it again finishes it;\n"
            "--abort undoes it until TO takes changes. Then start the servers with TO."
        ),
        arguments=(Argument("ARGUMENT", "as below", least=0, most=None),),
        options=(
            Option(("--abort",), "give up: FROM takes changes again, TO is emptied"),
            Option(("--plan",), "say what would be done, change nothing"),
            Option(("--force",), "also where running servers of FROM may not know of seals"),
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
