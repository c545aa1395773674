"""Detached processes, and the records that identify them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.process import LocalProcess, is_recorded, stop_recorded


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[LocalProcess]:
    """Yields a detached process that would run for a minute."""
    made = LocalProcess(["sleep", "60"], tmp_path / "sleep.log", detached=True)
    made.start()
    yield made
    made.kill()


def test_a_detached_process_is_found_after_the_clock_was_set(
    detached: LocalProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ps`` shows another start of it from then on."""
    (tmp_path / "ps").write_text("#!/bin/sh\necho S Mon Jan 1 00:00:01 2001\n")
    (tmp_path / "ps").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert is_recorded(detached.record)
    assert stop_recorded(detached.record)
    assert not detached.running
    assert not detached.record.exists()


def test_a_process_that_got_the_same_id_later_is_left_alone(detached: LocalProcess) -> None:
    text = detached.record.read_text()
    detached.record.write_text(text[:-1] + str((int(text[-1]) + 1) % 10))
    assert not is_recorded(detached.record)
    assert not stop_recorded(detached.record)
    assert detached.running


def test_a_process_that_has_ended_is_not_there(detached: LocalProcess) -> None:
    detached.signal(9)
    detached.wait(10)
    assert not is_recorded(detached.record)


def test_a_process_whose_name_is_no_text_is_found(tmp_path: Path) -> None:
    """/proc shows the first 15 bytes of a program's name, which may end within a character."""
    program = tmp_path / ("x" * 14 + "ä")
    program.symlink_to(shutil.which("sleep") or "sleep")
    made = LocalProcess([str(program), "60"], tmp_path / "sleep.log", detached=True)
    made.start()
    try:
        assert is_recorded(made.record)
        assert stop_recorded(made.record)
        assert not made.running
    finally:
        made.kill()
