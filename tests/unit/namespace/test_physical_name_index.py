"""The index of physical names: made once however many ask, renewed when it has grown."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from directory.namespace import physical_name_index
from directory.namespace.entry import ROOT_ID, Directory, Kind, Topic
from directory.namespace.keys import entry_key
from directory.namespace.snapshot import Snapshot
from directory.store.base import Delete, Put
from directory.wire.entry_codec import ProtoCodec


class CountingCodec(ProtoCodec):
    """Codec that counts the records whose physical names were read."""

    def __init__(self) -> None:
        self.read = 0

    def physical_names(self, records: Sequence[bytes]) -> Sequence[str | None]:
        self.read += len(records)
        return super().physical_names(records)


def row(codec: ProtoCodec, number: int) -> tuple[bytes, bytes]:
    topic = Topic(entry_id=100 + number, physical_name=f"flat.{number}")
    return entry_key(ROOT_ID, Kind.TOPIC, f"t{number:06}"), codec.encode(topic)


def test_a_load_reads_no_physical_name_and_many_askers_read_them_once() -> None:
    codec = CountingCodec()
    snapshot = Snapshot.load(codec, "i", 1, [[row(codec, number) for number in range(5000)]])
    assert codec.read == 0
    found: list[str] = []

    def ask(number: int) -> None:
        located = snapshot.locate(f"flat.{number}")
        assert located is not None
        found.append(located.name)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [f"t{number:06}" for number in range(16)]
    assert 5000 <= codec.read < 5000 + 16 * 4
    again = codec.read
    snapshot.apply(2, [Delete(row(codec, 1)[0])]).index_physical_names()
    assert codec.read <= again + 2


def test_it_gives_way_until_a_thread_waits_for_it() -> None:
    codec = CountingCodec()
    snapshot = Snapshot.load(codec, "i", 1, [[row(codec, number) for number in range(40_000)]])
    pauses = 0
    asker = threading.Thread(target=snapshot.locate, args=("flat.7",))

    def give_way() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 5:
            asker.start()
            while not snapshot.tree.physical.base.is_awaited:
                threading.Event().wait(0.001)

    snapshot.index_physical_names(give_way)
    asker.join()
    assert pauses == 5
    assert codec.read <= 40_000 + 4
    located = snapshot.locate("flat.39999")
    assert located is not None
    assert located.name == "t039999"


def test_many_small_directories_are_no_reason_to_give_way_more_often() -> None:
    codec = ProtoCodec()
    rows = []
    for number in range(2_000):
        one = Directory(entry_id=10 + number)
        rows.append((entry_key(ROOT_ID, Kind.DIRECTORY, f"d{number:04}"), codec.encode(one)))
        leaf = Topic(entry_id=100_000 + number, physical_name=f"flat.{number}")
        rows.append((entry_key(one.entry_id, Kind.TOPIC, "t"), codec.encode(leaf)))
    snapshot = Snapshot.load(codec, "i", 1, [sorted(rows)])
    pauses: list[int] = []
    snapshot.index_physical_names(lambda: pauses.append(1))
    assert snapshot.all_read
    assert len(pauses) < 10


def test_a_new_base_is_made_when_a_quarter_is_new() -> None:
    codec = CountingCodec()
    snapshot = Snapshot.load(codec, "i", 1, [[row(codec, number) for number in range(40_000)]])
    base = snapshot.tree.physical.base
    few = [Put(*row(codec, number)) for number in range(40_000, 45_000)]
    more = [Put(*row(codec, number)) for number in range(45_000, 60_000)]
    snapshot = snapshot.apply(2, few)
    assert snapshot.tree.physical.base is base
    snapshot = snapshot.apply(3, more)
    assert snapshot.tree.physical.base is not base
    for number in (0, 42_000, 59_999):
        located = snapshot.locate(f"flat.{number}")
        assert located is not None
        assert located.relative == (f"t{number:06}",)
        assert snapshot.same_unified(f"flat_{number}") == (f"flat.{number}",)


def test_names_of_one_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    # With one hash for all, every name is a candidate for every other.
    codec = ProtoCodec()
    snapshot = Snapshot.load(codec, "i", 1, [[row(codec, number) for number in range(50)]])
    monkeypatch.setattr(physical_name_index, "_HASH", 0)
    assert len(list(snapshot.tree.physical.candidates("flat_7"))) == 50
    located = snapshot.locate("flat.7")
    assert located is not None
    assert located.name == "t000007"
    assert snapshot.locate("flat_7") is None
    assert snapshot.same_unified("flat_7") == ("flat.7",)
