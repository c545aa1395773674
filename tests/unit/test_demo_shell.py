"""The demo's narrator: what it shows is what ran, and what is not as it must be ends it."""

import io
from pathlib import Path

import pytest

from deploy.demo import shell as module
from deploy.demo.shell import Shell, StepFailed


@pytest.fixture
def transcript() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def shell(transcript: io.StringIO) -> Shell:
    made = Shell(transcript)
    made.step("Try")
    return made


def test_a_command_and_all_that_it_prints_are_shown(
    shell: Shell, transcript: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.export({"WHO": "you"})
    assert shell.run("echo hello $WHO; echo also this >&2", shows=["^hello you$"]) == (
        "hello you\nalso this\n"
    )
    shown = transcript.getvalue()
    assert "\n$ echo hello $WHO; echo also this >&2\nhello you\nalso this\n" in shown
    assert shown.endswith(capsys.readouterr().out)


def test_commands_see_a_terminal_and_the_transcript_no_colours(
    shell: Shell, transcript: io.StringIO
) -> None:
    shell.run("test -t 1 && test -t 2 && printf '\\033[31mred\\033[0m\\n'", shows=["^red$"])
    assert transcript.getvalue().endswith("\nred\n")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("echo a", {"shows": ["b"]}),
        ("echo a", {"lacks": ["a"]}),
        ("echo a; exit 2", {}),
        ("echo a", {"code": 1}),
    ],
)
def test_what_is_not_as_it_must_be_ends_it_and_names_the_step(
    shell: Shell, line: str, expected: dict[str, object]
) -> None:
    with pytest.raises(StepFailed, match=r"'1. Try'(.|\n)*\$ echo a"):
        shell.run(line, **expected)  # type: ignore[arg-type]


def test_what_becomes_so_is_shown_once(
    shell: Shell, transcript: io.StringIO, tmp_path: Path
) -> None:
    count = f"echo x >> {tmp_path / 'n'}; grep -c x {tmp_path / 'n'}"
    shell.eventually(count, shows=["^3$"], seconds=20)
    assert transcript.getvalue().count("$ echo x") == 1
    assert transcript.getvalue().endswith("\n3\n")


def test_what_does_not_become_so_ends_it(shell: Shell) -> None:
    with pytest.raises(StepFailed, match="in vain"):
        shell.eventually("false", seconds=0.2)


def test_a_command_that_hangs_is_ended(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_SECONDS", 0.3)
    with pytest.raises(StepFailed, match="did not end"):
        shell.run("sleep 3600")  # the test's own limit is two minutes
