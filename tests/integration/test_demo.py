"""`make demo` from its first broker to `make demo-down`: the one place where the demo is run."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.demo import __main__, federation, story, topics
from deploy.demo.federation import CLUSTERS, Federation
from deploy.demo.shell import Shell
from deploy.local import kafka
from deploy.local.cache import ServerUnavailable
from tests.conftest import missing

_LONGEST_SECONDS = 580
"""Far more than it takes: what hangs ends, and a slow machine does not."""


def demo(action: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "deploy.demo", action, "--home", str(home)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST_SECONDS,
        # Neither the caller's servers nor its contexts may matter.
        env={
            **os.environ,
            "KDIR_AT": "127.0.0.1:1",
            "XDG_CONFIG_HOME": str(home.parent / "nowhere"),
        },
    )


def processes_of(home: Path) -> list[str]:
    """Returns every process whose command line names a file of the demo."""
    listed = subprocess.run(
        ["ps", "-eww", "-o", "pid=,args="], capture_output=True, text=True, check=True
    )
    return [
        line
        for line in listed.stdout.splitlines()
        if str(home) in line and "deploy.demo" not in line
    ]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    try:
        kafka.installed()
    except ServerUnavailable as reason:
        missing(reason)
    home = tmp_path / "demo"
    yield home
    federation.take_down(home)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_shows_its_steps_stays_up_and_goes_down(home: Path) -> None:
    up = demo("up", home)
    assert up.returncode == 0, up.stdout + up.stderr
    transcript = (home / "transcript.txt").read_text()
    assert transcript == up.stdout
    check_story(transcript)

    assert len(federation.recorded(home)) == 9
    assert len(processes_of(home)) >= 9
    assert demo("status", home).stdout.split() == federation.running(home)
    play(home)
    again = demo("up", home)
    assert again.returncode == 1
    assert "running already" in again.stderr
    assert len(federation.running(home)) == 9

    down = demo("down", home)
    assert (down.returncode, down.stdout) == (0, "ended 9 servers of the demo\n")
    assert processes_of(home) == []
    assert [path.name for path in home.iterdir()] == ["lock"]
    assert demo("down", home).stdout == "no demo was running\n"
    assert demo("status", home).returncode == 1


def check_story(transcript: str) -> None:
    """Asserts that a command line showed each thing that a newcomer is promised."""
    commands = re.findall(r"^\$ (.+?)(?:     # after \d+ s)?$", transcript, re.MULTILINE)
    places = r"kdir --at (\$\w+) resolve -o kcat /la/tracking/search/clicks"
    resolved = set(re.findall(places, "\n".join(commands)))
    assert len(resolved) == len(CLUSTERS) == 6
    for begins in (
        "kdir tree /",
        "kdir --at $LA ls /tracking",
        "kdir --at $NY ls /tracking",
        "kdir which",
        "kdir --at $LA_METRICS trace",
        "printf",
        "kdir find click",
    ):
        assert any(command.startswith(begins) for command in commands), begins
    assert commands.count("kdir index build") == 2
    assert transcript.count("UNREACHABLE") >= 1
    assert "stale" in transcript
    assert "\x1b" not in transcript  # no colours where nobody looks
    assert len(re.findall("^  ✓ ", transcript, re.MULTILINE)) == 10


def play(home: Path) -> None:
    """Asserts that the commands which the demo suggests work in a new shell."""
    shown = subprocess.run(
        ["sh", "-c", '. "$0"/env; kdir resolve -o json /la/tracking/search/clicks', str(home)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "HOME": str(home.parent / "nowhere")},
    )
    assert json.loads(shown.stdout)


@pytest.mark.parametrize(
    ("line", "shows"), [("echo nonsense", "sense of it"), ("echo nonsense; exit 3", "nonsense")]
)
def test_a_demo_that_fails_says_where_and_leaves_nothing_running(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    shows: str,
) -> None:
    def report(demo: Federation, shell: Shell, began: float) -> None:
        demo.start_directories()
        assert federation.running(home) == sorted(CLUSTERS)
        shell.step("What cannot be shown")
        shell.run(line, shows=[shows])

    monkeypatch.setattr(story, "report", report)
    monkeypatch.setattr(topics, "SEEDS", {})
    assert __main__.up(home) == 1
    output = capsys.readouterr().err
    assert "step '1. What cannot be shown'" in output
    assert "nonsense" in output
    assert federation.running(home) == []
    assert processes_of(home) == []
    assert (home / "directories" / "la" / "server.log").exists()
