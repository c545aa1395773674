"""Addresses of stores of every kind, and kdir as people run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

KDIR = str(Path(sys.executable).with_name("kdir"))
Addresses = Callable[[], str]


def addresses_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> Addresses:
    """Makes addresses of one kind, at each of which nothing is yet."""
    if kind == "etcd":
        address: Addresses = request.getfixturevalue("etcd_cluster").address
        return address
    numbers = iter(range(1_000))
    return lambda: f"sqlite:///{folder / f'{next(numbers)}.db'}"


@pytest.fixture(params=["sqlite", "etcd"])
def kind(request: pytest.FixtureRequest) -> str:
    """Returns the kind of the store that a test is about."""
    return str(request.param)


@pytest.fixture
def new_address(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Addresses:
    """Returns an address at which nothing is yet."""
    return addresses_of(kind, request, tmp_path)


class Kdir:
    """Runner of ``kdir`` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.environment = {
            **os.environ,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_STATE_HOME": str(folder / "state"),
            "NO_COLOR": "1",
        }

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [KDIR, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == code, (arguments, done)
        return done

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command in the background, to be killed."""
        return subprocess.Popen(
            [KDIR, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@pytest.fixture
def kdir(tmp_path: Path) -> Kdir:
    """Returns the command, as installed."""
    return Kdir(tmp_path / "home")
