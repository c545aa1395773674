"""The distributions as a user installs them: sdist and wheel are built, and installed in virtual
environments that have chosen packages of this one; nothing is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.pages import ROOT

__all__ = ["Installed", "build_sdist", "build_wheel", "copied_checkout"]

_BUILD = "from setuptools import build_meta as b; print(b.build_{kind}({target!r}))"


def copied_checkout(target: Path) -> Path:
    """Returns a copy of the checkout's files: builds write into the folder that they build."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(source.read_bytes())
    return target


def build_sdist(checkout: Path, target: Path) -> Path:
    """Returns the folder of the source distribution of a checkout, unpacked in ``target``."""
    file = _build("sdist", checkout, target)
    with tarfile.open(file) as archive:
        archive.extractall(target, filter="data")
    return target / file.name.removesuffix(".tar.gz")


def build_wheel(source: Path, target: Path) -> Path:
    """Returns the wheel that an unpacked source distribution makes."""
    return _build("wheel", source, target)


def _build(kind: str, source: Path, target: Path) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", _BUILD.format(kind=kind, target=str(target))],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]


class Installed:
    """Virtual environment with the wheel, what it requires with these extras, and nothing else.

    The required packages are links to this environment's.
    """

    def __init__(self, folder: Path, wheel: Path, extras: Iterable[str] = ()) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self._bin = folder / "venv" / "bin"
        (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        self.pip("install", "--no-deps", str(wheel))
        (own,) = metadata.distributions(name="kdir", path=[str(packages)])
        for one in _required(own, frozenset(extras)):
            _link(one, packages)

    def pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the tests' pip on the installed environment, without any index."""
        command = [sys.executable, "-m", "pip", "--python", str(self._bin / "python")]
        index = ["--no-index"] if arguments[0] == "install" else []
        done = subprocess.run(
            [*command, "--disable-pip-version-check", arguments[0], *index, *arguments[1:]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the installed environment, outside the checkout."""
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("KDIR_", "PYTHON", "XDG_"))
        }
        return subprocess.run(
            [str(self._bin / program), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            timeout=120,
            env={**environment, "HOME": str(self.folder)},
        )


def _required(
    distribution: metadata.Distribution, extras: frozenset[str]
) -> list[metadata.Distribution]:
    """Returns what a distribution needs with these extras, at any depth."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [(distribution, extras)]
    while waiting:
        one, wanted = waiting.pop()
        for line in one.requires or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": each}) for each in (*wanted, "")):
                continue
            if requirement.name not in found:
                found[requirement.name] = metadata.distribution(requirement.name)
                waiting.append((found[requirement.name], frozenset(requirement.extras)))
    return list(found.values())


def _link(distribution: metadata.Distribution, packages: Path) -> None:
    """Links what a distribution installs; of a namespace package shared by several, its parts."""
    for file in distribution.files or ():
        if file.parts[0] in {"..", "__pycache__"}:
            continue
        top = Path(str(distribution.locate_file(file.parts[0])))
        shared = len(file.parts) > 2 and not (top / "__init__.py").exists()
        parts = file.parts[: 2 if shared and top.suffix != ".dist-info" else 1]
        place = packages.joinpath(*parts)
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(Path(str(distribution.locate_file("/".join(parts)))))
