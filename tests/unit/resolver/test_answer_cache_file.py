"""What a client remembers across restarts, and that a file is worth no error."""

import errno
import json
import logging
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resolver import Resolver, errors
from resolver.answer_cache_file import AnswerCacheFile, BootTime
from resolver.testing import MemoryDirectory

CLICKS = "/la/tracking/clicks"


class Clocks:
    """A monotonic clock and one on the wall; the wall's can be set."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall = 1_700_000_000.0

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        self.wall += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    real: Any = AnswerCacheFile.__init__

    def init(self: AnswerCacheFile, *args: Any) -> None:
        real(
            self,
            *args,
            wall_clock=lambda: clocks.wall,
            boot_clock=lambda: BootTime("boot", clocks.wall),
        )

    monkeypatch.setattr(AnswerCacheFile, "__init__", init)
    return clocks


@pytest.fixture
def directory() -> Iterator[MemoryDirectory]:
    with MemoryDirectory() as made:
        made.cluster("/")
        made.cluster("/la/tracking", bootstrap_servers="la:9092")
        made.topic(CLICKS)
        yield made


def begin(directory: MemoryDirectory, clocks: Clocks, file: Path, **options: Any) -> Resolver:
    return directory.resolver(cache_file=file, clock=lambda: clocks.now, **options)


def calls(directory: MemoryDirectory) -> int:
    count = len(directory.transport.calls)
    directory.transport.calls.clear()
    return count


def test_a_client_that_restarts_begins_with_its_last_answers(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    file = tmp_path / "deep" / "cache"
    first = begin(directory, clocks, file)
    was = first.resolve(CLICKS)
    first.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    calls(directory)
    clocks.wall += 30
    clocks.now = 5.0  # another process: its clock has nothing to do with the other's
    again = begin(directory, clocks, file)
    assert again.resolve(CLICKS) == was
    assert calls(directory) == 0
    clocks.pass_by(31)
    assert again.resolve(CLICKS) == was
    assert calls(directory) > 0, "the lifetime runs on while nobody looks"


def test_the_way_is_remembered_too(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    first = begin(directory, clocks, tmp_path / "cache")
    first.resolve(CLICKS)
    first.close()
    directory.stop("/")
    calls(directory)
    again = begin(directory, clocks, tmp_path / "cache")
    with pytest.raises(errors.Absent):
        again.resolve("/la/tracking/other")
    assert calls(directory) == 1


def test_while_everything_is_away_the_last_answers_are_given_marked(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    first = begin(directory, clocks, tmp_path / "cache")
    first.resolve(CLICKS)
    first.close()
    directory.stop("/")
    directory.stop("/la/tracking")
    clocks.wall += 3600
    again = begin(directory, clocks, tmp_path / "cache")
    found = again.resolve(CLICKS)
    assert (found.stale, found.age_seconds) == (True, 3600.0)


def test_a_wall_clock_that_was_set_back_makes_nothing_last_longer(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    first = begin(directory, clocks, tmp_path / "cache")
    first.resolve(CLICKS)
    first.close()
    calls(directory)
    clocks.wall -= 3600
    begin(directory, clocks, tmp_path / "cache").resolve(CLICKS)
    assert calls(directory) > 0


@pytest.mark.parametrize("boot_id", ["one", "another", ""])
def test_G12_a_wall_clock_that_was_set_back_by_less_than_passed_makes_nothing_last_longer(
    directory: MemoryDirectory, tmp_path: Path, boot_id: str
) -> None:
    now = 1000.0
    boot, wall = [BootTime("one", 50.0)], [1e9]

    def file_of(client: Resolver) -> AnswerCacheFile:
        return AnswerCacheFile(
            tmp_path / "cache",
            client.cache,
            client.servers,
            lambda: now,
            lambda: wall[0],
            lambda: boot[0],
        )

    def begin() -> Resolver:
        return directory.resolver(clock=lambda: now)

    client = begin()
    client.resolve(CLICKS)
    file_of(client).save()
    boot[0], wall[0] = BootTime(boot_id, 50.0 + 1800), wall[0] + 1800 - 1790
    directory.stop("/")
    directory.stop("/la/tracking")
    client = begin()
    assert file_of(client).load() == 1
    found = client.resolve(CLICKS)
    assert (found.stale, found.age_seconds) == (True, 1800.0 if boot_id == "one" else 10.0)


@pytest.mark.parametrize("change", [{"principal": "User:bob"}, {"servers": ["elsewhere:1"]}])
def test_another_ones_file_is_not_read(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path, change: dict[str, Any]
) -> None:
    first = begin(directory, clocks, tmp_path / "cache", principal="User:ana")
    first.resolve(CLICKS)
    first.close()
    options: dict[str, Any] = {"principal": "User:ana", **change}
    servers = options.pop("servers", first.servers)
    calls(directory)
    other = Resolver(
        servers,
        cache_file=tmp_path / "cache",
        transport=directory.transport,
        clock=lambda: clocks.now,
        **options,
    )
    assert other.cache.answers == {}


def saved(directory: MemoryDirectory, clocks: Clocks, file: Path) -> bytes:
    first = begin(directory, clocks, file)
    first.resolve(CLICKS)
    first.close()
    return file.read_bytes()


def test_a_newer_version_is_not_read(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    file = tmp_path / "cache"
    content = saved(directory, clocks, file)
    head, _, body = content.partition(b"\n")
    file.write_bytes(json.dumps({**json.loads(head), "version": 4}).encode() + b"\n" + body)
    assert begin(directory, clocks, file).cache.answers == {}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_torn_or_changed_file_is_ignored(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path, data: st.DataObject
) -> None:
    file = tmp_path / "cache"
    content = saved(directory, clocks, file)
    place = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.sampled_from(["cut", "flip", "zeros", "noise"]))
    match damage:
        case "cut":
            broken = content[:place]
        case "flip":
            broken = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        case "zeros":
            broken = content[:place] + bytes(len(content) - place)
        case _:
            broken = data.draw(st.binary(max_size=200))
    file.write_bytes(broken)
    calls(directory)
    client = begin(directory, clocks, file)
    found = client.resolve(CLICKS)
    assert (found.topic, found.stale) == ("clicks", False)
    if broken.partition(b"\n")[2] != content.partition(b"\n")[2]:
        assert calls(directory) > 0


def test_a_file_of_deeply_nested_json_is_ignored(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_bytes(b"[" * 1_000_000)
    assert begin(directory, clocks, tmp_path / "cache").resolve(CLICKS).topic == "clicks"


@pytest.mark.parametrize("exists", [False, True])
def test_a_symlink_to_the_file_stays_one(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path, *, exists: bool
) -> None:
    (tmp_path / "deep").mkdir()
    target, link = tmp_path / "deep" / "cache", tmp_path / "link"
    link.symlink_to(target)
    if exists:
        target.write_bytes(b"")
    with begin(directory, clocks, link) as client:
        client.resolve(CLICKS)
    assert link.is_symlink()
    assert begin(directory, clocks, target).cache.answers


def test_a_file_that_cannot_be_written_or_read_is_no_error(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    client = begin(directory, clocks, tmp_path / "folder")
    assert client.resolve(CLICKS).topic == "clicks"
    client.close()
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENAMETOOLONG])
def test_a_file_that_cannot_even_be_looked_at_is_no_error(
    directory: MemoryDirectory,
    clocks: Clocks,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    file = tmp_path / ("x" * 300)
    if code == errno.EACCES:  # root, who may run the tests, is never refused
        file = tmp_path / "cache"
        look = Path.stat

        def refuse(self: Path, **options: Any) -> os.stat_result:
            if self == file:
                raise PermissionError(code, os.strerror(code), str(self))
            return look(self, **options)

        monkeypatch.setattr(Path, "stat", refuse)
    client = begin(directory, clocks, file)
    assert client.resolve(CLICKS).topic == "clicks"
    client.close()


def test_answers_are_saved_from_time_to_time(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    client = begin(directory, clocks, tmp_path / "cache")
    client.resolve(CLICKS)
    assert not (tmp_path / "cache").exists()
    clocks.pass_by(61)
    client.resolve(CLICKS)
    assert (tmp_path / "cache").exists()


def test_the_answers_of_resolve_many_are_saved_from_time_to_time(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    client = begin(directory, clocks, tmp_path / "cache")
    clocks.pass_by(61)
    client.resolve_many([CLICKS])
    assert (tmp_path / "cache").exists()


def test_a_producer_starts_with_its_last_answers_while_no_server_answers(
    directory: MemoryDirectory, clocks: Clocks, tmp_path: Path
) -> None:
    directory.link("/link", CLICKS)
    with begin(directory, clocks, tmp_path / "cache") as first:
        for path in (CLICKS, "/link"):
            first.resolve(path, for_writes=True)
    directory.stop("/")
    directory.stop("/la/tracking")
    clocks.wall += 3600
    again = begin(directory, clocks, tmp_path / "cache")
    assert again.resolve(CLICKS, for_writes=True).stale
    with pytest.raises(errors.Unreachable):
        again.resolve("/link", for_writes=True)


def test_a_fifo_is_not_opened_and_not_replaced(
    directory: MemoryDirectory,
    clocks: Clocks,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    for name in ("fifo", "link"):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            client = begin(directory, clocks, tmp_path / name)
            client.resolve(CLICKS)
            clocks.pass_by(61)
            client.resolve(CLICKS)
            client.close()
        assert len(caplog.messages) == 1
        assert f"{tmp_path / name} is no regular file" in caplog.text
    assert stat.S_ISFIFO((tmp_path / "fifo").lstat().st_mode)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "fifo", tmp_path / "link"]
    assert (tmp_path / "link").is_symlink()


def test_two_threads_that_save_at_once_each_write_a_whole_file(
    directory: MemoryDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolver = directory.resolver()
    resolver.resolve(CLICKS)
    file = AnswerCacheFile(tmp_path / "cache", resolver.cache, ["a:1"], lambda: 0.0)
    replace, waiting = Path.replace, threading.Barrier(2)

    def replace_together(self: Path, target: Path) -> Path:
        waiting.wait(10)  # both have written, none has replaced
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replace_together)
    with ThreadPoolExecutor(2) as pool:
        for saved in [pool.submit(file.save) for _ in range(2)]:
            saved.result()
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"]
    assert file.load() == 1


def test_an_interrupted_save_leaves_no_file(
    directory: MemoryDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_self: Path, _target: Path) -> None:
        raise KeyboardInterrupt

    file = AnswerCacheFile(tmp_path / "cache", directory.resolver().cache, ["a:1"], lambda: 0.0)
    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        file.save()
    assert list(tmp_path.iterdir()) == []
