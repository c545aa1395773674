"""The demo's folder: only what a demo made is removed from it."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.demo import __main__, federation, story


def put(home: Path, *names: str) -> None:
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("kept")


def test_what_a_demo_made_is_removed_but_for_the_lock(tmp_path: Path) -> None:
    put(tmp_path, "lock", "env", "transcript.txt", "index/part", "kafka/a/log")
    put(tmp_path, "directories/la/server.log")
    federation.remove(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["lock"]


def test_down_removes_nothing_from_a_folder_that_holds_more_than_a_demo(tmp_path: Path) -> None:
    put(tmp_path, "env", "lock", "src/main.py")
    done = subprocess.run(
        [sys.executable, "-m", "deploy.demo", "down", "--home", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path} holds src, which no demo made: nothing was")
    assert len(done.stderr.splitlines()) == 1
    for name in ("env", "lock", "src/main.py"):
        assert (tmp_path / name).read_text() == "kept"


def test_up_starts_nothing_in_a_folder_that_holds_more_than_a_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, "notes.txt")
    monkeypatch.setattr(story, "report", lambda *_: pytest.fail("it was started"))
    assert __main__.up(tmp_path) == 1
    assert "holds notes.txt, which no demo made" in capsys.readouterr().err
    assert (tmp_path / "notes.txt").read_text() == "kept"
