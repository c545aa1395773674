"""kdir backup and verify, over servers in memory: what is not whole is nothing."""

from __future__ import annotations

import errno
import os
import re
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import admin_pb2, entry_pb2, resolve_pb2

from resolver.backup_file import BackupReader
from resolver.errors import StoreUnavailable, Unimplemented, Unreachable
from resolver.testing import MemoryTransport
from tests.support.command_line import Ran, run
from tests.unit.resolver.test_backup_file import HEADER, ROWS, messages

WHOSE = resolve_pb2.ResolveResponse(
    authority=resolve_pb2.Authority(
        cluster=entry_pb2.Cluster(cluster="la", cluster_id="kc-aaaaaaaaaa", mount="/la")
    )
)
FIRST, SECOND = "127.0.0.1:20001", "127.0.0.1:20002"


DETACHED = admin_pb2.AdoptTopicsResponse(
    adoptions=[
        admin_pb2.Adoption(physical_name="a", action="detached"),
        admin_pb2.Adoption(physical_name="b", action="keep"),
    ]
)


def serving(**answers: Callable[[], Iterator[Any]]) -> MemoryTransport:
    """Returns servers that stream; ``first`` and ``second`` say what."""
    transport = MemoryTransport()
    for endpoint, name in ((FIRST, "first"), (SECOND, "second")):
        if name in answers:
            transport.serve(endpoint, _streaming(answers[name]))
    return transport


def _streaming(answer: Callable[[], Iterator[Any]]) -> Callable[[str, Any], Any]:
    def handle(name: str, _: Any) -> Any:
        if name.endswith("AdoptTopics"):
            return DETACHED
        return WHOSE if name.endswith("Resolve") else answer()

    return handle


def whole() -> Iterator[Any]:
    yield from messages()


def cut() -> Iterator[Any]:
    yield from messages()[:2]
    raise StoreUnavailable("the store is away: what was sent is incomplete")


def short() -> Iterator[Any]:
    yield from messages()[:2]


def wrong() -> Iterator[Any]:
    yield from reversed(messages())


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_part_of_a_backup(number: signal.Signals, tmp_path: Path) -> None:
    def ended() -> Iterator[Any]:
        yield messages()[0]
        os.kill(os.getpid(), number)
        yield from messages()[1:]

    before = signal.signal(number, lambda *_: None)
    try:
        with pytest.raises(SystemExit) as exited:
            backup(serving(first=ended), "--to", "one.kdir")
    finally:
        signal.signal(number, before)
    assert exited.value.code == 128 + number
    assert list(tmp_path.iterdir()) == []


def backup(transport: MemoryTransport, *arguments: str) -> Ran:
    return run(["backup", "--at", f"{FIRST},{SECOND}", *arguments], transport)


def files() -> list[str]:
    return sorted(str(one) for one in Path().iterdir())


def test_a_backup_is_what_the_server_sent() -> None:
    done = backup(serving(first=whole), "--to", "one.kdir")
    assert (done.code, done.lines) == (0, ["one.kdir"])
    assert "la (kc-aaaaaaaaaa) at revision 7" in done.err
    with Path("one.kdir").open("rb") as file:
        reader = BackupReader(file)
        assert reader.header == HEADER
        assert list(reader.rows()) == ROWS
    assert Path("one.kdir").stat().st_mode & 0o777 == 0o600
    assert files() == ["one.kdir"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize("fails", ["fsync", "open"])
def test_a_full_disk_is_74_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, number: int, fails: str
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), *(["x.part"] if fails == "open" else []))

    if fails == "open":
        monkeypatch.setattr(tempfile, "mkstemp", full)
    else:
        monkeypatch.setattr(os, "fsync", full)
    done = backup(serving(first=whole), "--to", "one.kdir")
    assert done.code == 74
    where = "." if fails == "open" else "one.kdir"
    assert done.err == f"error: the output cannot be written: {where}: {os.strerror(number)}\n"
    assert files() == []


@pytest.mark.parametrize("broken", [cut, short, wrong])
def test_what_is_not_whole_leaves_no_file(broken: Callable[[], Iterator[Any]]) -> None:
    done = backup(serving(first=broken), "--to", "one.kdir")
    assert done.code == 3
    assert "is incomplete" in done.err or "not whole" in done.err
    assert done.out == ""
    assert files() == []


@pytest.mark.parametrize("broken", [cut, short, wrong])
def test_the_next_server_is_asked_and_its_backup_is_its_own(
    broken: Callable[[], Iterator[Any]],
) -> None:
    done = backup(serving(first=broken, second=whole), "--to", "one.kdir")
    assert done.code == 0
    with Path("one.kdir").open("rb") as file:
        assert list(BackupReader(file).rows()) == ROWS
    assert files() == ["one.kdir"]


def test_what_is_no_fault_of_one_server_is_not_asked_of_the_next() -> None:
    def old() -> Iterator[Any]:
        yield from ()
        raise Unimplemented("this server does not do that")

    transport = serving(first=old, second=whole)
    assert backup(transport, "--to", "one.kdir").code == 3
    asked = [endpoint for endpoint, name in transport.calls if not name.endswith("Resolve")]
    assert asked == [FIRST]
    assert files() == []


def test_a_file_that_came_meanwhile_is_not_replaced() -> None:
    def slowly() -> Iterator[Any]:
        yield from messages()[:-1]
        Path("one.kdir").write_text("somebody's")
        yield messages()[-1]

    done = backup(serving(first=slowly), "--to", "one.kdir")
    assert done.code == 5
    assert Path("one.kdir").read_text() == "somebody's"
    assert files() == ["one.kdir"]


@pytest.mark.parametrize("name", ["fifo", "link", "folder"])
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_what_is_no_regular_file_is_not_replaced(name: str, force: tuple[str, ...]) -> None:
    os.mkfifo("fifo")
    Path("link").symlink_to("fifo")
    Path("folder").mkdir()
    transport = serving(first=whole)
    done = backup(transport, "--to", name, *force)
    assert done.code == 2
    assert f"--to {name!r}: found no regular file; --to - writes to stdout" in done.err
    assert transport.calls == []
    assert stat.S_ISFIFO(Path("fifo").lstat().st_mode)
    assert Path("link").is_symlink()
    assert files() == ["fifo", "folder", "link"]


def test_force_replaces_a_file() -> None:
    Path("one.kdir").write_text("an old one")
    assert backup(serving(first=whole), "--to", "one.kdir", "--force").code == 0
    with Path("one.kdir").open("rb") as file:
        assert BackupReader(file).header == HEADER


@pytest.mark.parametrize(
    ("cluster", "cluster_id", "named"),
    [
        ("la", "kc-aaaaaaaaaa", "la"),
        ("../elsewhere/authorized_keys", "kc-aaaaaaaaaa", "kc-aaaaaaaaaa"),
        ("../x", "kc-aaaaaaaaaa", "kc-aaaaaaaaaa"),
        ("", "kc-aaaaaaaaaa", "kc-aaaaaaaaaa"),
        (".hidden", "kc-aaaaaaaaaa", "kc-aaaaaaaaaa"),
        ("-rf", "kc-aaaaaaaaaa", "kc-aaaaaaaaaa"),
        ("la\x1b[2J", "kc-aaaaaaaaaa", "kc-aaaaaaaaaa"),
        ("x" * 201, "kc-aaaaaaaaaa", "kc-aaaaaaaaaa"),
        ("../la", "../kc", ""),
    ],
)
@pytest.mark.parametrize("taken_at_ms", [5, -1, 2**63 - 1])
def test_a_server_names_no_file_outside_the_folder(
    cluster: str, cluster_id: str, named: str, taken_at_ms: int
) -> None:
    header = admin_pb2.BackupHeader(
        format=1,
        cluster_id=cluster_id,
        cluster=cluster,
        incarnation="i1",
        revision=7,
        taken_at_ms=taken_at_ms,
    )
    Path("sub").mkdir()
    os.chdir("sub")
    done = backup(serving(first=lambda: iter(messages(header=header))))
    os.chdir("..")
    assert files() == ["sub"]
    made = sorted(one.name for one in Path("sub").iterdir())
    if named:
        assert done.code == 0
        assert len(made) == 1
        assert re.fullmatch(rf"{named}-[0-9]{{8}}T[0-9]{{6}}Z\.kdir", made[0])
    else:
        assert done.code == 3
        assert made == []
        assert "--to FILE" in done.err


def test_a_terminal_gets_no_backup() -> None:
    done = run(["backup", "--at", FIRST, "--to", "-"], serving(first=whole), terminal=True)
    assert done.code == 2


def difference(where: str, found: str = "none") -> admin_pb2.VerifyResponse:
    return admin_pb2.VerifyResponse(
        difference=admin_pb2.Difference(
            compared="kafka",
            path_or_key=where,
            field="topic",
            expected="t",
            actual=found,
            advice="look",
        )
    )


def summary(**fields: Any) -> admin_pb2.VerifyResponse:
    return admin_pb2.VerifyResponse(summary=admin_pb2.VerifySummary(rows=9, revision=4, **fields))


def verify(*answer: Any, arguments: tuple[str, ...] = ()) -> Ran:
    def output() -> Iterator[Any]:
        for one in answer:
            if isinstance(one, Exception):
                raise one
            yield one

    return run(["verify", "--at", FIRST, *arguments], serving(first=output))


def test_verify_names_topics_that_are_in_kafka_and_not_in_the_tree() -> None:
    named = "1 topic in Kafka and not in the tree: a\n  to list all: kdir ls --detached"
    assert named in verify(summary(kafka_topics=3)).err
    assert "not in the tree" not in verify(summary()).err


@pytest.mark.parametrize(
    ("answer", "code", "output"),
    [
        ([summary()], 0, "compared 9 rows at revision 4: no differences"),
        ([summary(kafka_topics=3)], 0, "at revision 4, 3 topics of Kafka: no differences"),
        ([difference("/a"), summary(differences=1)], 5, ": 1 difference"),
        ([summary(message="Kafka is away")], 3, "not compared: Kafka is away"),
        ([difference("/a"), summary(differences=1, message="x")], 5, "not compared: x"),
        ([difference("/a")], 3, "ended before its summary"),
        ([], 3, "ended before its summary"),
        ([difference("/a"), Unreachable("gone")], 3, "gone"),
    ],
)
def test_the_exit_code_says_equal_different_or_not_compared(
    answer: list[Any], code: int, output: str
) -> None:
    done = verify(*answer)
    assert done.code == code
    assert output in done.err


@pytest.mark.parametrize("arguments", [(), ("--each",), ("-o", "name")])
def test_differences_found_before_the_stream_breaks_are_shown(arguments: tuple[str, ...]) -> None:
    done = verify(difference("/a"), Unreachable("gone"), arguments=arguments)
    assert [line.split("\t")[-1] for line in done.lines] == ["/a"]
    assert done.err.count("topic: look") == (arguments != ("-o", "name"))


def test_differences_that_are_alike_share_a_row_unless_each_is_wanted() -> None:
    found = [difference(f"/{number}") for number in range(5)] + [difference("/x", "two")]
    answer = (*found, summary(differences=6))
    table = verify(*answer)
    assert table.lines == [
        "kafka\ttopic\tt\tnone\t5\t/0, /1, /2, and 2 more",
        "kafka\ttopic\tt\ttwo\t1\t/x",
    ]
    assert table.err.count("topic: look") == 1
    each = verify(*answer, arguments=("--each",))
    assert [line.split("\t")[-1] for line in each.lines] == ["/0", "/1", "/2", "/3", "/4", "/x"]
    assert verify(*answer, arguments=("-o", "name")).lines == ["/0", "/1", "/2", "/3", "/4", "/x"]
    objects = verify(*answer, arguments=("-o", "json")).objects
    assert objects[0]["difference"]["advice"] == "look"
    assert objects[-1] == {"summary": {"rows": 9, "revision": 4, "differences": 6}}
