"""Whether the reads of a process go on, and what systemd is sent of it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from directory.server.process import main
from directory.server.watchdog import Watchdog, notify_systemd

UNIT = Path(__file__).resolve().parents[3] / "deploy" / "systemd" / "kdir@.service"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Answering:
    """A server whose calls the test counts."""

    waiting_reads = 0
    ended_calls = 0


def test_a_process_whose_reads_wait_and_never_end_is_stuck_and_asks_for_a_restart() -> None:
    clock, server = Clock(), Answering()
    sent: list[str] = []
    watchdog = Watchdog([server], 30.0, clock=clock, notify=sent.append)

    def pass_by(seconds: int, ended: int = 0) -> int:
        """So often the watchdog of systemd was fed."""
        sent.clear()
        for _ in range(seconds):
            clock.now += 1
            server.ended_calls += ended
            watchdog.check_reads()
        assert set(sent) <= {"WATCHDOG=1", "WATCHDOG=trigger"}
        assert watchdog.is_stuck == (sent[-1] == "WATCHDOG=trigger")
        return sent.count("WATCHDOG=1")

    assert pass_by(100) == 100, "nobody asks"
    server.waiting_reads = 1
    assert pass_by(100, ended=1) == 100, "they are many, and end"
    assert pass_by(100) == 32
    server.waiting_reads = 0
    assert pass_by(10) == 10, "they ended after all"
    server.waiting_reads = 1
    assert pass_by(30) == 30
    assert pass_by(1, ended=1) == 1


@pytest.mark.parametrize(("call_seconds", "stuck_after"), [(0.5, 6), (3.0, 6), (10.0, 13)])
def test_a_read_that_waits_as_long_as_a_call_may_work_is_not_stuck(
    call_seconds: float, stuck_after: int
) -> None:
    clock, server = Clock(), Answering()
    sent: list[str] = []
    watchdog = Watchdog([server], call_seconds, clock=clock, notify=sent.append)
    for _ in range(3):
        watchdog.check_reads()
        clock.now += 1
    # A burst came a moment ago, at a server that was idle.
    server.waiting_reads, looks = 1, 0
    sent.clear()
    while not watchdog.is_stuck:
        watchdog.check_reads()
        clock.now += 1
        looks += 1
    assert looks == stuck_after + 1
    assert sent == ["WATCHDOG=1"] * stuck_after + ["WATCHDOG=trigger"]


def test_one_stuck_server_of_several_makes_the_process_stuck() -> None:
    clock, fine, stuck = Clock(), Answering(), Answering()
    watchdog = Watchdog([fine, stuck], 30.0, clock=clock, notify=lambda _: None)
    stuck.waiting_reads = 1
    for _ in range(2):
        watchdog.check_reads()
        clock.now += 33
    assert watchdog.is_stuck


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_sent_a_state_at_the_socket_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, abstract: bool
) -> None:
    name = f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}" if abstract else name)
        systemd.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        notify_systemd("READY=1")
        assert systemd.recv(100) == b"READY=1"


def test_without_systemd_nothing_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_systemd("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/gone")
    notify_systemd("READY=1")


def test_the_unit_is_not_restarted_for_a_config_that_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "la.toml"
    file.write_text('mount = "no path"\n')
    code = main(["--config", str(file)])
    assert "mount: " in capsys.readouterr().err
    settings = [line.partition("=")[::2] for line in UNIT.read_text().splitlines()]
    assert ("RestartPreventExitStatus", str(code)) in settings
    # systemd compares that with the exit code of the main process only.
    assert [name for name, _ in settings if name.startswith("Exec")] == ["ExecStart"]
