"""Errors that no verb expects: an exit code of their own, one sentence, and no traceback."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from directory import __main__ as directory_main
from directory.maintenance import offline_commands
from directory.server import process
from resolver.cli import tree
from tests.support.command_line import run
from tests.support.waiting import eventually


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns the file of the traceback once ``kdir tree`` failed by a bug, as it does now."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fails(*_: object) -> int:
        raise ZeroDivisionError("no such ratio\nand more")

    verb = next(one for one in tree.VERBS if one.name == "tree")
    monkeypatch.setattr(tree, "VERBS", (verb._replace(run=fails),))
    return tmp_path / "kdir" / "last-error.log"


def test_an_unforeseen_error_is_70_and_its_traceback_is_in_a_file(broken: Path) -> None:
    ran = run(["tree", "/la"])
    assert ran.code == 70
    assert ran.err == f"error: unforeseen: ZeroDivisionError: no such ratio; details: {broken}\n"
    text = broken.read_text()
    assert "tree /la" in text
    assert "Traceback" in text
    assert "in fails" in text


def test_the_file_is_its_owners_and_holds_no_password(broken: Path) -> None:
    broken.parent.mkdir()
    broken.write_text("older")
    broken.chmod(0o644)
    assert run(["tree", "/la", "--at", "etcd://ana:secret@127.0.0.1:2379/kdir"]).code == 70
    assert broken.stat().st_mode & 0o777 == 0o600
    assert "secret" not in broken.read_text()
    assert "etcd://ana:***@127.0.0.1" in broken.read_text()


def test_debug_prints_where(broken: Path) -> None:
    ran = run(["tree", "/la", "--debug"])
    assert ran.code == 70
    assert "Traceback" in ran.err
    assert broken.exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_74_in_one_sentence(unbuffered: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "resolver.cli.main", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.returncode == 74
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_a_named_file_that_cannot_be_written_is_no_output(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "/srv/x")

    monkeypatch.setattr(tree, "VERBS", (tree.VERBS[0]._replace(run=full),))
    ran = run(["tree", "/la"])
    assert ran.code == 70
    assert f"OSError: /srv/x: No space left on device; details: {broken}" in ran.err


def test_standard_streams_may_be_closed(tmp_path: Path) -> None:
    def with_closed(streams: str, verb: str) -> subprocess.CompletedProcess[str]:
        closed = f"exec {sys.executable} -m resolver.cli.main {verb} {streams}"
        return subprocess.run(
            ["/bin/sh", "-c", closed],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        )

    assert with_closed("<&- 2>&-", "--version").returncode == 0
    assert with_closed("<&- >&- 2>&-", "--version").returncode == 74
    silent = "context set la --servers 127.0.0.1:1"  # what prints no data needs no stdout
    assert with_closed("<&- >&- 2>&-", silent).returncode == 0


@pytest.mark.parametrize(
    "verb",
    ["apply -", "adopt /la --map -", "resolve -", "restore --from - --store sqlite:///la.db"],
)
def test_a_closed_stdin_is_no_empty_input(tmp_path: Path, verb: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {sys.executable} -m resolver.cli.main {verb} <&-"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    )
    assert done.returncode == 2, done
    assert "error: stdin is closed" in done.stderr


def test_data_for_a_closed_stdout_is_not_lost_unnoticed(tmp_path: Path) -> None:
    from deploy.local.directory import DirectoryProcess

    with DirectoryProcess(tmp_path / "la", "/la", {"cluster": "la"}) as server:
        for verb in ("ls -d /la", "resolve -o json /la", "backup --to -"):
            kdir = f"{sys.executable} -m resolver.cli.main --at {server.address} {verb}"
            done = subprocess.run(
                ["/bin/sh", "-c", f"exec {kdir} >&-"],
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            refused = "error: the output cannot be written: Bad file descriptor\n"
            assert (done.returncode, done.stderr) == (74, refused), verb


def test_an_index_that_cannot_be_written_is_refused_before_anything_is_read() -> None:
    ran = run(["index", "build", "--table", "/proc/x", "--at", "127.0.0.1:1"])
    assert ran.code == 2
    assert ran.err.startswith("error: --table /proc/x: cannot be written: ")
    assert len(ran.err.splitlines()) == 1


def test_what_a_cloud_answers_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: str) -> bool:
        raise OSError("Generic S3 error\n  \x1b[31m↳\x1b[0m no credentials.")

    monkeypatch.setattr("deltalake.DeltaTable.is_deltatable", refused)
    ran = run(["index", "build", "--table", "s3://bucket/kdir", "--at", "127.0.0.1:1"])
    assert ran.code == 3
    assert "cannot be reached: Generic S3 error: no credentials; credentials come from" in ran.err
    assert "--table DIR, or KDIR_INDEX" in ran.err
    assert "doctor" not in ran.err, "no server was asked"


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("seconds", [0.0, 3.0], ids=["script", "java"])
def test_interrupted_while_spark_starts_or_works_it_is_130(tmp_path: Path, seconds: float) -> None:
    """^C goes to the whole group of processes, Java among them, and the scripts that become it."""
    from deploy.local.directory import DirectoryProcess

    with DirectoryProcess(tmp_path / "la", "/la", {"cluster": "la"}) as server:
        arguments = ["index", "build", "--table", str(tmp_path / "t"), "--at", server.address]
        process = subprocess.Popen(
            [sys.executable, "-m", "resolver.cli.main", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        eventually(lambda: _runs_java(process.pid), timeout_seconds=60)
        time.sleep(seconds)  # it starts, or works: both are interrupted alike
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=100)
        assert process.returncode == 130, err
        assert "Traceback" not in err


def _runs_java(leader: int) -> bool:
    """True if a process of a session is Java."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if int(rest.split()[3]) == leader and name == "java":
            return True
    return False


@pytest.mark.parametrize("line", [["server"], ["restore", "--from", "x"]])
def test_a_server_or_restore_interrupted_while_it_starts_is_130(
    line: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["directory", *line])
    monkeypatch.setattr(process, "main", interrupted)
    monkeypatch.setattr(offline_commands, "main", interrupted)
    assert directory_main._run() == 130


def test_an_unforeseen_error_of_restore_is_70_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def fails(*_: object, **__: object) -> int:
        raise ZeroDivisionError("no such ratio")

    monkeypatch.setattr(offline_commands, "plan_migration", fails)
    assert offline_commands.main("migrate", ["sqlite:///a", "sqlite:///b"]) == 70
    error = capsys.readouterr().err
    assert error.startswith("error: unforeseen: ZeroDivisionError: no such ratio; details: ")
    assert "Traceback" not in error
    assert "kdir migrate sqlite:///a" in (tmp_path / "kdir" / "last-error.log").read_text()
    assert offline_commands.main("migrate", ["--debug", "sqlite:///a", "sqlite:///b"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_an_unforeseen_error_of_restore_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stores = ["sqlite:///a", "etcd://la:my p@ssw0rd@h/la"]

    def fails(_: object, target: str, **__: object) -> int:
        raise ZeroDivisionError(f"no such ratio at {target}")

    monkeypatch.setattr(offline_commands, "plan_migration", fails)
    assert offline_commands.main("migrate", ["--debug", *stores]) == 70
    with pytest.raises(SystemExit):
        offline_commands.main("migrate", [*stores, stores[1]])
    shown = capsys.readouterr().err + (tmp_path / "kdir" / "last-error.log").read_text()
    assert shown.count("etcd://la:***@h/la") == 5
    assert "ssw0rd" not in shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("arguments", [["--help"], ["ls", "--help"], ["no\u2026"]])
def test_an_output_that_is_not_utf_8_is_no_error(encoding: str, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "resolver.cli.main", *arguments],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert done.returncode == (2 if len(arguments) == 1 and arguments != ["--help"] else 0)
    assert b"\\u2026" in done.stdout + done.stderr
