"""``kdir restore`` and ``kdir migrate``, which open stores directly, without a server.

Exit codes: 0 done, 2 an argument cannot be used (a damaged backup or store, another cluster's
config), 3 a store or the change log did not answer, 5 refused (something would be lost, another
cluster's store). Data on stdout, everything else on stderr.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from directory.maintenance.log_backup import UnusableLog, log_rows
from directory.maintenance.migrate import Stage, abort, migrate, plan_abort, plan_migration
from directory.maintenance.restore import (
    Backup,
    RestoreRefused,
    begin_new_incarnation,
    check_new_incarnation,
    plan_restore,
    restore,
)
from directory.server.config import ConfigError, load_configs
from directory.store.addresses import describe_address
from directory.store.base import IncompatibleStore, StoreDamaged, StoreUnreachable
from resolver.backup_file import DamagedBackup
from resolver.closed_stdin import replace_closed_stdin
from resolver.command_parser import CommandParser
from resolver.confirmation import NotApproved, approve
from resolver.errors import InvalidArgument, KafkaUnavailable
from resolver.printable import printable
from resolver.redaction import redacted
from resolver.unforeseen_errors import report_unforeseen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from directory.server.config import ServerConfig

__all__ = ["PARSERS", "main"]

_UNUSABLE: Final = 2
_AWAY: Final = 3
_REFUSED: Final = 5
_BEGINS_NEW: Final = (
    "the change log does not hold the answers to repeated requests, nor what kdir history shows: "
    "both begin new"
)


def _restore_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="kdir restore", description="Fill a store from a backup.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--from", metavar="FILE", help="the backup; - is stdin")
    what.add_argument(
        "--from-log",
        action="store_true",
        help="no backup: the state that the change log in Kafka holds; with --config",
    )
    what.add_argument(
        "--new-life",
        action="store_true",
        help="the store was restored by other means: only expire older tokens",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", metavar="ADDRESS", help="sqlite:///FILE or etcd://HOST/PREFIX")
    where.add_argument("--config", metavar="FILE", help="a server's config, which names it")
    parser.add_argument(
        "--cluster-id", metavar="ID", help="with --from-log: where several logs are of one name"
    )
    parser.add_argument("--replace", action="store_true", help="also if the store is not empty")
    parser.add_argument("-y", "--yes", action="store_true", help="with --replace: do not ask")
    parser.add_argument("--plan", action="store_true", help="only print what would be done")
    parser.add_argument("--force", action="store_true", help="also while servers are running")
    return parser


def _migrate_parser() -> argparse.ArgumentParser:
    parser = CommandParser(prog="kdir migrate", description="Move a cluster's store.")
    parser.add_argument("FROM", help="the store that the cluster is in")
    parser.add_argument("TO", help="the store to move it to")
    parser.add_argument("--abort", action="store_true", help="undo what was begun")
    parser.add_argument(
        "--force", action="store_true", help="also while changes wait for the change log"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--plan", action="store_true", help="only print what would be done")
    return parser


PARSERS: Final = {"restore": _restore_parser, "migrate": _migrate_parser}


def main(verb: str, arguments: Sequence[str]) -> int:
    """Runs one of the verbs of ``PARSERS``."""
    parser = PARSERS[verb]()
    options = parser.parse_args(arguments)
    if verb == "restore" and (missing := _missing_argument(options)):
        parser.error(missing)
    replace_closed_stdin()
    run: Callable[[argparse.Namespace], int] = _restore if verb == "restore" else _migrate
    try:
        return run(options)
    except RestoreRefused as reason:
        return _failed(str(reason), _REFUSED)
    except (
        ConfigError,
        DamagedBackup,
        IncompatibleStore,
        InvalidArgument,
        NotApproved,
        StoreDamaged,
        UnusableLog,
    ) as reason:
        return _failed(str(reason), _UNUSABLE)
    except OSError as error:
        return _failed(f"{error.filename or 'the backup'}: {error.strerror or error}", _UNUSABLE)
    except StoreUnreachable as reason:
        return _failed(f"the store cannot be used now: {reason}", _AWAY)
    except KafkaUnavailable as reason:
        return _failed(f"the change log cannot be read now: {reason.message}", _AWAY)
    except KeyboardInterrupt:
        return _failed("interrupted: the same again goes on where this ended", 130)
    except Exception as error:  # noqa: BLE001 - reported in one sentence
        command = f"kdir {verb} {' '.join(arguments)}"
        return report_unforeseen(error, command, debug=options.debug)


def _missing_argument(options: argparse.Namespace) -> str:
    """Returns the argument that a restore lacks, as a sentence; empty = it lacks none."""
    if not (getattr(options, "from") or options.from_log or options.new_life):
        return "--from FILE, the backup, is needed; or --from-log, or --new-life"
    if not (options.store or options.config):
        return "--store ADDRESS, the store to fill, is needed; or --config FILE, which names it"
    return ""


def _failed(why: str, code: int) -> int:
    _print_progress(f"error: {why}")
    return code


def _print_progress(text: str) -> None:
    """Prints a line of progress, redacted; control characters from a store or a backup are
    escaped.
    """
    sys.stderr.write(f"{printable(redacted(text))}\n")
    sys.stderr.flush()


def _print(*lines: str) -> None:
    """Prints lines of data."""
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)


# -- restore -------------------------------------------------------------------------------------


def _restore(options: argparse.Namespace) -> int:
    if options.cluster_id and not options.from_log:
        raise ConfigError("--cluster-id goes with --from-log")
    if options.new_life:
        return _begin_new_incarnation(options)
    with _backup_file(options) as (backup, address):
        plan = plan_restore(backup, address, replace=options.replace, force=options.force)
        if options.from_log and not plan.done:
            _print_progress(_BEGINS_NEW)
        if options.plan:
            _print(*plan.lines())
            return _REFUSED if plan.refusals else 0
        if plan.losses is not None and plan.losses.total:
            for line in plan.lines():
                _print_progress(line)
        if plan.replaces and not plan.done and not plan.refusals:
            action = f"replace what {describe_address(address)} holds"
            if not approve(action, yes=options.yes):
                _print_progress("unchanged")
                return 0
        identity = restore(plan, _print_progress)
    where = describe_address(address)
    did = "holds just that already" if plan.done else f"now holds the {backup.describe()}"
    _print(f"{where} {did}; incarnation {identity.incarnation}")
    return 0


def _begin_new_incarnation(options: argparse.Namespace) -> int:
    if options.replace:
        raise ConfigError("--replace goes with --from")
    if options.force:
        raise ConfigError("--force goes with --from")
    address = options.store or _only_store_of(options.config)
    where = describe_address(address)
    if options.plan:
        check_new_incarnation(address)
        _print(f"{where}: a new incarnation would begin, with all that it holds")
        return 0
    identity = begin_new_incarnation(address)
    _print(f"{where} starts a new incarnation: {identity.incarnation}")
    return 0


def _only_config(file: str) -> ServerConfig:
    configs = load_configs([file])
    if len(configs) > 1:
        names = ", ".join(one.cluster for one in configs)
        raise ConfigError(f"{file}: is of clusters {names}; expected the config of one")
    return configs[0]


def _only_store_of(config: str) -> str:
    configs = load_configs([config])
    if len(configs) > 1:
        names = ", ".join(one.cluster for one in configs)
        raise ConfigError(f"{config}: is of cluster {names}; --store says which is meant")
    return configs[0].store


@contextmanager
def _backup_file(options: argparse.Namespace) -> Iterator[tuple[Backup, str]]:
    """Yields the backup to restore, and the address of the store."""
    if options.from_log:
        with _log_backup_file(options) as found:
            yield found
        return
    name = getattr(options, "from")
    with _opened(name) as file:
        try:
            backup = Backup.read(file)
        except DamagedBackup as reason:
            raise DamagedBackup(f"{name}: {reason}") from None
        yield backup, options.store or _store_of(options.config, backup.header.cluster)


@contextmanager
def _log_backup_file(options: argparse.Namespace) -> Iterator[tuple[Backup, str]]:
    if options.config is None:
        raise ConfigError("--from-log: --config names the change log; --store does not")
    config = _only_config(options.config)
    if config.change_log is None:
        raise ConfigError(
            f"{options.config}: has no [change_log]; expected that of cluster {config.cluster}"
        )
    of_cluster = config.cluster, options.cluster_id or ""
    with log_rows(config.change_log, *of_cluster) as (header, rows):
        yield Backup(header, rows, "change log"), config.store


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    """Yields the file at its beginning; it is read more than once."""
    if name != "-":
        with Path(name).open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as spooled:
        shutil.copyfileobj(sys.stdin.buffer, spooled)
        yield spooled


def _store_of(config: str, cluster: str) -> str:
    """Returns the store of a config, which must be of the backup's cluster.

    Raises:
        ConfigError: the config cannot be used, or is another cluster's.
    """
    configs = load_configs([config])
    found = [one for one in configs if one.cluster == cluster]
    if not found:
        names = ", ".join(one.cluster for one in configs)
        raise ConfigError(f"{config}: is of cluster {names}; the backup is of {cluster}")
    return found[0].store


# -- migrate -------------------------------------------------------------------------------------


def _migrate(options: argparse.Namespace) -> int:
    source, target = options.FROM, options.TO
    if options.abort:
        found = plan_abort(source, target)
        if options.plan:
            _print(found.describe(), "would be undone")
            return 0
        if not approve(
            f"abort the migration to {describe_address(target)}",
            "What the migration wrote there is removed",
            yes=options.yes,
        ):
            _print_progress("unchanged")
            return 0
        identity = abort(found, _print_progress)
        _print(
            f"cluster {identity.cluster} ({identity.cluster_id}) is in "
            f"{describe_address(source)}, incarnation {identity.incarnation}"
        )
        return 0
    found = plan_migration(source, target, force=options.force)
    if options.plan:
        done = found.stage is Stage.DONE
        _print(found.describe(), f"{'nothing' if done else 'the rest'} would be done")
        return 0
    action = f"move cluster {found.identity.cluster} to {describe_address(target)}"
    consequence = f"{describe_address(source)} is read-only from then on"
    if found.stage is not Stage.DONE and not approve(action, consequence, yes=options.yes):
        _print_progress("unchanged")
        return 0
    identity = migrate(found, _print_progress)
    _print(
        f"cluster {identity.cluster} ({identity.cluster_id}) is in {describe_address(target)}, "
        f"incarnation {identity.incarnation}; start its servers with it"
    )
    return 0
