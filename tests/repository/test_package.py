"""What is installed: the licence, and the files that are no Python."""

import shutil
import subprocess
import sys
import tomllib
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_METADATA = """\
from setuptools import build_meta
print("made:", build_meta.prepare_metadata_for_build_wheel("out"))
"""


def test_the_wheel_names_the_licence_and_ships_it(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "proto").mkdir()
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _METADATA], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    folder = tmp_path / "out" / done.stdout.rpartition("made: ")[2].strip()
    metadata = Parser().parsestr((folder / "METADATA").read_text())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert (folder / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_licence_is_the_whole_of_apache_2_0() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability." in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_each_pattern_of_package_data_matches_a_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    packages = [ROOT / "resolver", ROOT / "directory", ROOT / "proto" / "kdir"]
    unused = [one for one in patterns if not any(any(p.rglob(one)) for p in packages)]
    assert unused == []
