"""Readers of a change log's state on a real broker: loads and their memory, effective policies, a
resync, and restores. A server filled the log from its store.

Each load and each restore runs in a process of its own, so that nothing else is counted. Processor
times are compared, in alternating rounds; of a resync wall times, since the server does more then.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from operator import truediv
from pathlib import Path
from typing import Final

from google.protobuf.field_mask_pb2 import FieldMask
from kdir.v1 import admin_pb2, directory_pb2, entry_pb2

from bench import ground
from bench.bare_log import LogTopic
from bench.changelog import JAVA, Logged, reading_tail
from bench.load import channel_to, method_of
from bench.rows import Row, at_most
from bench.writes import CREATE
from deploy.local.kafka import KafkaBroker
from directory.api.visible_tree import OpenTree
from directory.federation import inheritance
from directory.maintenance import offline_commands
from directory.namespace.effective_policies import ExplainedValue, explain, path_levels
from directory.namespace.lookup import DirectoryAt
from directory.namespace.snapshot import Snapshot
from directory.store.addresses import open_store
from directory.store.replica import LOADED_PREFIXES
from directory.wire.entry_codec import ProtoCodec
from resolver.changes.log_load import load_log
from resolver.changes.policy_cache import PolicyCache
from resolver.changes.record import Schemas
from resolver.changes.state_fold import StateFold
from resolver.changes.state_reader import newest_checkpoint
from resolver.changes.topic_reader import TopicReader
from resolver.path import Path as DirectoryPath

__all__ = ["run"]

_LOADS: Final = 3
_RESYNCS: Final = 3
_RESTORES: Final = 3
_FEWER: Final = 10
"""A log of so many times fewer topics is restored, too."""
_DEPTH: Final = 8
_ASKED: Final = 2_000
_ASKED_ROUNDS: Final = 5
_PATIENCE_SECONDS: Final = 900.0
_UPDATE: Final = "/kdir.v1.DirectoryService/UpdateEntry"
_RESYNC: Final = "/kdir.v1.AdminService/ResyncChangeLog"


def run() -> list[Row]:
    """Measures loads, what they leave in memory, effective policies, resyncs, and restores."""
    with (
        tempfile.TemporaryDirectory(prefix="kdir-bench-") as name,
        KafkaBroker(jvm=JAVA) as broker,
    ):
        folder = Path(name)
        logged = _filled(folder / "all", broker, ground.TOPICS)
        with logged.running():
            logged.await_begun()
            effective = _effective(logged, *_deep_path(logged))
            resync = _resync(logged)
            backup = folder / "backup.kdir"
            _run_kdir(logged, "backup", "--to", str(backup))
        fewer = _filled(folder / "fewer", broker, ground.TOPICS // _FEWER)
        return [*_loads(logged), effective, resync, *_restores(logged, fewer, backup)]


def _filled(folder: Path, broker: KafkaBroker, topics: int) -> Logged:
    """Returns a stopped server whose log holds so many topics."""
    folder.mkdir()
    file = folder / "copy.sqlite"
    store = ground.filled(topics, max(1, topics // 100))
    shutil.copyfile(store.removeprefix("sqlite:///"), file)
    logged = Logged(folder, broker, f"sqlite:///{file}")
    with logged.running():
        began = time.monotonic()
        logged.begin()
        _await_whole(logged.state)
        _note(f"the first filling of {topics:,} topics took {time.monotonic() - began:.0f} s")
    return logged


def _await_whole(topic: LogTopic) -> None:
    """Returns once the first filling's checkpoint is there; a log counts as begun before that."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with closing(TopicReader({"bootstrap.servers": topic.bootstrap}, topic.name)) as reader:
        while newest_checkpoint(reader) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"{topic.name}: no checkpoint came")
            time.sleep(1)


def _run_kdir(logged: Logged, *arguments: str) -> None:
    command = [str(Path(sys.executable).with_name("kdir")), *arguments]
    environment = {**os.environ, "KDIR_AT": logged.process.address}
    subprocess.run(command, env=environment, stdout=sys.stderr, check=True)


def _apart(*arguments: str) -> dict[str, float]:
    """Makes one measurement in a process of its own; returns its figures by name."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.log_readers", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


# -- loads -----------------------------------------------------------------------------------------


def _loads(logged: Logged) -> list[Row]:
    topic = logged.state
    where = topic.bootstrap, topic.name
    loads, bare, replicas = [], [], []
    for _ in range(_LOADS):
        loads.append(_apart("load", *where))
        bare.append(_apart("bare", *where)["seconds"])
        replicas.append(_apart("replica", logged.store)["bytes"])
    seconds = statistics.median(bare)
    ratio = statistics.median(map(truediv, (one["seconds"] for one in loads), bare))
    return [
        at_most(
            f"load of the state of {ground.SHOWN} topics",
            ratio * seconds,
            "CPU s",
            "bare consume and fastavro",
            seconds,
            1.5,
        ),
        at_most(
            f"memory of an entry of the state of {ground.SHOWN} topics",
            statistics.median(one["bytes"] for one in loads),
            "bytes",
            "a server's replica",
            statistics.median(replicas),
            3,
        ),
    ]


def _load(bootstrap: str, topic: str) -> dict[str, float]:
    with closing(TopicReader({"bootstrap.servers": bootstrap}, topic)) as reader:
        reader.bounds()
        Schemas()  # its imports must not be counted
        before = _memory("VmRSS")
        began = time.process_time()
        log = load_log(reader, StateFold(), seconds=_PATIENCE_SECONDS)
        seconds = time.process_time() - began
    gc.collect()
    return {"seconds": seconds, "bytes": (_memory("VmRSS") - before) / len(log.state.rows)}


def _bare(bootstrap: str, topic: str) -> dict[str, float]:
    began = time.process_time()
    LogTopic(bootstrap, topic).decode_all()
    return {"seconds": time.process_time() - began}


def _replica(store: str) -> dict[str, float]:
    before = _memory("VmRSS")
    gc.disable()
    snapshot = _snapshot(store)
    gc.collect()
    return {"bytes": (_memory("VmRSS") - before) / snapshot.topic_count}


def _snapshot(address: str) -> Snapshot:
    with closing(open_store(address, ground.CLUSTER)) as store:
        loading = store.load(LOADED_PREFIXES)
        return Snapshot.load(ProtoCodec(), "", loading.revision, loading.pages())


# -- effective policies ----------------------------------------------------------------------------


def _deep_path(logged: Logged) -> tuple[str, str]:
    """Makes nested directories with policies; returns the path of the innermost, and the token
    of the last change.
    """
    with channel_to(logged.process.address) as channel:
        create, update = method_of(channel, CREATE), method_of(channel, _UPDATE)
        path, token = ground.MOUNT, ""
        for level in range(1, _DEPTH + 1):
            path = f"{path}/level{level}"
            made = directory_pb2.CreateEntryRequest(path=path)
            made.entry.directory.SetInParent()
            create(made.SerializeToString(), timeout=60)
            changed = entry_pb2.Entry()
            changed.policies.owner = f"of level {level}"
            changed.policies.topic_config["retention.ms"].value = str(level)
            mask = FieldMask(paths=["policies.owner", "policies.topic_config.retention.ms"])
            asked = directory_pb2.UpdateEntryRequest(path=path, entry=changed, update_mask=mask)
            answer = update(asked.SerializeToString(), timeout=60)
            token = directory_pb2.UpdateEntryResponse.FromString(answer).token
    return path, token


def _effective(logged: Logged, path: str, token: str) -> Row:
    """Measures warm effective policies from the log, against a server's code in this process."""
    tree = OpenTree(_snapshot(logged.store), DirectoryPath.parse(ground.MOUNT), ground.CLUSTER)
    with PolicyCache(logged.process.address, timeout_seconds=_PATIENCE_SECONDS) as cache:
        cache.wait_for(token)
        if _from_log(cache, path) != _from_tree(tree, path):
            raise AssertionError(f"{_from_log(cache, path)}, {_from_tree(tree, path)}")
        from_log, from_tree = [], []
        for _ in range(_ASKED_ROUNDS):
            from_log.append(_microseconds(lambda: cache.effective(path)))
            from_tree.append(_microseconds(lambda: _explained(tree, path)))
    ratio, own = statistics.median(map(truediv, from_log, from_tree)), statistics.median(from_tree)
    return at_most(
        f"effective policies at depth {_DEPTH} from the log, warm",
        ratio * own,
        "CPU µs",
        "a server's own, in its process",
        own,
        2,
    )


def _microseconds(do: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(_ASKED):
        do()
    return (time.process_time() - began) / _ASKED * 1e6


def _explained(tree: OpenTree, path: str) -> tuple[ExplainedValue, ...]:
    """Returns what a server computes for ``GetEffectivePolicies`` before it encodes the answer."""
    wanted = DirectoryPath.parse(path)
    found = tree.require_entry(wanted)
    assert isinstance(found, DirectoryAt)  # noqa: S101 - as it was made
    levels = inheritance.inherited_origins(tree.snapshot)
    levels += path_levels(tree.snapshot, tree.mount, found.node.entry_id)
    return explain(levels)


def _from_tree(tree: OpenTree, path: str) -> set[tuple[str, str]]:
    return {(str(one.origin.value), one.origin.path) for one in _explained(tree, path)}


def _from_log(cache: PolicyCache, path: str) -> set[tuple[str, str]]:
    return {(one.value, one.path) for one in cache.effective(path).values.values()}


# -- a resync --------------------------------------------------------------------------------------


def _resync(logged: Logged) -> Row:
    """Measures a resync that finds no difference, against a bare loop over the state topic."""
    seconds, bare, spent = [], [], []
    ground.await_quiet(logged.pid)
    with channel_to(logged.process.address) as channel, reading_tail(logged.history) as tail:
        tail.begin()
        for _ in range(_RESYNCS):
            began, before = time.monotonic(), ground.cpu_seconds(logged.pid)
            request = admin_pb2.ResyncChangeLogRequest().SerializeToString()
            method_of(channel, _RESYNC)(request, timeout=60)
            # The first checkpoint follows the request, which is a change itself.
            seconds.append(tail.second_checkpoint_at(began) - began)
            spent.append(ground.cpu_seconds(logged.pid) - before)
            began = time.monotonic()
            logged.state.decode_all()
            bare.append(time.monotonic() - began)
    _note(f"a resync took {statistics.median(spent):.1f} s of processor in the server")
    return at_most(
        f"a resync of {ground.SHOWN} topics without a difference",
        statistics.median(map(truediv, seconds, bare)) * statistics.median(bare),
        "s",
        "bare consume and fastavro",
        statistics.median(bare),
        2,
    )


# -- restores --------------------------------------------------------------------------------------


def _restores(logged: Logged, fewer: Logged, backup: Path) -> list[Row]:
    from_log, from_file = [], []
    for _ in range(_RESTORES):
        from_log.append(_apart("restore", *_log_of(logged)))
        from_file.append(
            _apart("restore", str(logged.process.config), "--from", str(backup))["seconds"]
        )
    few = _apart("restore", *_log_of(fewer))
    ratio = statistics.median(map(truediv, (one["seconds"] for one in from_log), from_file))
    seconds = statistics.median(from_file)
    return [
        at_most(
            f"kdir restore --from-log, {ground.SHOWN} topics",
            ratio * seconds,
            "CPU s",
            "kdir restore --from of the same",
            seconds,
            2,
        ),
        at_most(
            f"peak memory of kdir restore --from-log, {ground.SHOWN} topics",
            statistics.median(one["bytes"] for one in from_log) / 2**20,
            "MiB",
            f"{ground.TOPICS // _FEWER:,} topics",
            few["bytes"] / 2**20,
            1.5,
        ),
    ]


def _log_of(logged: Logged) -> tuple[str, ...]:
    return str(logged.process.config), "--from-log", "--cluster-id", logged.process.cluster_id


def _restore(config: str, *arguments: str) -> dict[str, float]:
    """Deletes the store of a stopped server, then restores it."""
    for file in Path(config).parent.glob("copy.sqlite*"):
        file.unlink()
    began = time.process_time()
    if offline_commands.main("restore", [*arguments, "--config", config]):
        raise AssertionError("it was not restored")
    return {"seconds": time.process_time() - began, "bytes": _memory("VmHWM")}


def _memory(field: str) -> int:
    """Returns a field of this process's status, in bytes."""
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"this process has no {field}")


def _note(text: str) -> None:
    sys.stderr.write(f"log_readers: {text}\n")


_MEASURED: Final[dict[str, Callable[..., dict[str, float]]]] = {
    "load": _load,
    "bare": _bare,
    "replica": _replica,
    "restore": _restore,
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(_MEASURED[sys.argv[1]](*sys.argv[2:])) + "\n")
