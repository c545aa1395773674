"""What a server process does at signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from directory.server import process
from directory.server.process import stop_at_signals
from directory.store.base import StoreUnreachable


class SlowEvent(threading.Event):
    """Event with a lock that a thread may hold for long."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def set(self) -> None:
        assert self.lock.acquire(timeout=20), "waits for the thread that it interrupted"
        super().set()
        self.lock.release()


@pytest.fixture
def _handlers() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_does_not_wait_for_a_lock_of_the_thread_that_it_interrupts(
    number: signal.Signals,
) -> None:
    stop = SlowEvent()
    stop_at_signals(stop)
    with stop.lock:
        signal.raise_signal(number)
        signal.raise_signal(number)
        assert not stop.is_set()
    assert stop.wait(20)


def test_a_config_is_checked_where_stdout_lacks_a_character(tmp_path: Path) -> None:
    file = tmp_path / "la.toml"
    file.write_text(
        'mount = "/la"\nstore = "sqlite:////nowhere/la.sqlite"\n[links]\n"/ny/x" = "/la/x"\n'
    )
    ran = subprocess.run(
        [sys.executable, "-m", "directory", "--check", "--config", file],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert rb"site link /ny/x \u2192 /la/x" in ran.stdout


@pytest.mark.parametrize("code", [2, 3])
def test_with_json_the_reason_of_an_end_is_an_object_too(
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    if code == 3:

        def unreachable(_: object) -> None:
            raise StoreUnreachable("etcd://root:s3cr3t@h:1/la")

        monkeypatch.setattr(process, "load_selected_configs", unreachable)
    file = tmp_path / "la.toml"
    file.write_text('mount = "no path"')
    assert process.main(["--config", str(file), "--log-format", "json"]) == code
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["logger"]) == ("ERROR", "directory")
    expected = "the store cannot be reached: etcd://" if code == 3 else f"{file}: mount: "
    assert line["message"].startswith(expected)
    assert "s3cr3t" not in line["message"]
    assert process.main(["--config", str(file)]) == code
    assert capsys.readouterr().err.startswith(f"error: {expected}")


@pytest.mark.parametrize(
    ("listen", "metrics", "processes", "code"),
    [
        ("127.0.0.1", "127.0.0.1:7418", "3", 2),  # the third would have 7420
        ("127.0.0.1", "127.0.0.1:7420", "1", 2),
        ("127.0.0.1", "127.0.0.1:7418", "2", 0),
        ("127.0.0.1", "127.0.0.2:7420", "1", 0),
        ("127.0.0.1", "127.0.0.1:0", "3", 0),
        ("127.0.0.1", "localhost:7418", "3", 2),
        ("[::1]", "localhost:7420", "1", 2),
        ("localhost", "127.0.0.1:7420", "1", 2),
        ("localhost", "localhost:7420", "1", 2),
        ("[::1]", "[0:0::1]:7420", "1", 2),
        ("127.0.0.2", "localhost:7420", "1", 0),
        ("127.0.0.1", "localhost:7418", "2", 0),
    ],
)
def test_no_process_reports_metrics_at_the_port_of_the_calls(
    listen: str, metrics: str, processes: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """It could not bind it, and would be started again for ever."""
    ask = ["--mount", "/la", "--listen", f"{listen}:7420", "--processes", processes]
    assert process.main([*ask, "--metrics", metrics, "--check"]) == code
    shown = capsys.readouterr().err
    assert (f"expected ports beside that of listen {listen}:7420" in shown) == bool(code)
