"""What is committed holds anywhere: no path of one machine, no address in constraints.txt."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Home folders, and where this very checkout lies.
_PLACES = [r"/home/\w+/", r"/Users/\w+/", r"/root/\w", re.escape(f"{ROOT}/")]
_OF_ONE_MACHINE = re.compile("|".join(_PLACES).encode())
_EXAMPLES = Path(__file__).name  # this file holds bad examples


def tracked(root: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached"], cwd=root, stdout=subprocess.PIPE, check=True
    )
    return [root / name for name in listed.stdout.decode().split("\0") if name]


def naming_a_machine(paths: Iterable[Path]) -> list[str]:
    """Returns `file:line` of each line that names a path of one machine."""
    return [
        f"{path.name}:{number}"
        for path in paths
        if path.is_file() and path.name != _EXAMPLES
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if _OF_ONE_MACHINE.search(line)
    ]


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    paths = tracked(ROOT)
    assert ROOT / "Makefile" in paths
    assert naming_a_machine(paths) == []


@pytest.mark.parametrize(
    "line", ["x = '/home/ana/kdir'", "/Users/ana/x", "see /root/notes", f"{ROOT}/Makefile"]
)
def test_a_path_of_one_machine_is_found(tmp_path: Path, line: str) -> None:
    file = tmp_path / "file.py"
    file.write_text(f"fine\n{line}\n")
    assert naming_a_machine([file]) == ["file.py:2"]


@pytest.mark.parametrize("line", ["/usr/bin/env python3", "mount /la/home/x", "~/.cache/kdir"])
def test_a_path_that_any_machine_has_is_not(tmp_path: Path, line: str) -> None:
    file = tmp_path / "file.py"
    file.write_text(line)
    assert naming_a_machine([file]) == []


def test_constraints_are_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9._-]+==[\w.]+", line)] == []
    assert lines == sorted(lines)
