"""The demo's servers: three Kafka brokers and six directory servers, which outlive this process.

They are started, killed and ended by the records in the demo's folder, never by name; ``story``
fills them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.demo import topics
from deploy.local.directory import DirectoryProcess
from deploy.local.kafka import KafkaBroker
from deploy.local.ports import free_port
from deploy.local.process import is_recorded, stop_recorded

__all__ = [
    "CLUSTERS",
    "Federation",
    "ForeignFiles",
    "locked",
    "recorded",
    "remove",
    "running",
    "take_down",
    "variable",
]

CLUSTERS = {
    "root": "/",
    "la": "/la",
    "ny": "/ny",
    "la-tracking": "/la/tracking",
    "la-metrics": "/la/metrics",
    "ny-tracking": "/ny/tracking",
}
"""Mount of each cluster, parents first."""
_PROGRAMS = Path(sys.executable).parent
"""Folder of ``kdir`` and ``python``; resolving it would leave the virtual environment."""
_MADE = frozenset({"directories", "env", "index", "kafka", "lock", "transcript.txt"})
"""What a demo makes in its folder."""
SITE_LINKS = {"la": "/la/tracking", "ny": "/ny/tracking"}
"""What `/tracking` means at the directories of each site."""

KAFKA: dict[str, dict[str, Any]] = {
    # The only one where kdir may make topics, and change what is armed; it observes the others.
    "la-tracking": {"split_on": ".", "ceiling": ["create", "configs"]},
    "la-metrics": {"split_on": "."},
    "ny-tracking": {"split_on": "."},
}


def variable(cluster: str) -> str:
    """Returns the shell variable with the address of a cluster's directory: `LA_TRACKING`."""
    return cluster.upper().replace("-", "_")


class Federation:
    """The servers of the demo below ``home``; nothing runs until it is started."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.brokers = {
            name: KafkaBroker(home / "kafka" / name, detached=True) for name in topics.SEEDS
        }
        self.directories: dict[str, DirectoryProcess] = {}

    def start_brokers(self) -> None:
        """Starts the brokers together, and makes the topics that were there before kdir."""

        def start(name: str) -> None:
            self.brokers[name].start()
            topics.make(self.brokers[name].bootstrap, topics.SEEDS[name])

        _each(start, self.brokers)

    def start_directories(self) -> None:
        """Starts the directory servers together; each is bound when this returns."""
        # Chosen only now: the brokers hold their ports, so that none of these can be one of theirs.
        ports: dict[str, int] = {}
        for name in CLUSTERS:
            while (port := free_port()) in ports.values():
                pass
            ports[name] = port
        for name, mount in CLUSTERS.items():
            self.directories[name] = DirectoryProcess(
                self.home / "directories" / name,
                mount,
                self._settings(name, ports),
                port=ports[name],
                detached=True,
            )
        self.restart(*CLUSTERS)

    def _settings(self, name: str, ports: dict[str, int]) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        site = name.partition("-")[0]
        if name != "root":
            above = CLUSTERS[name].rpartition("/")[0].strip("/") or "root"
            settings["parent"] = [f"127.0.0.1:{ports[above]}"]
        if site in SITE_LINKS:
            settings["site"] = site
        if name in self.brokers:
            settings["kafka"] = {
                "bootstrap": [self.brokers[name].bootstrap],
                "sweep_interval_seconds": 2,
                **KAFKA[name],
            }
        if site in SITE_LINKS:
            settings["links"] = {"/tracking": SITE_LINKS[site]}
        return settings

    def restart(self, *names: str) -> None:
        """Starts directory servers, also again, on their ports and stores."""
        _each(lambda name: self.directories[name].start(), names)

    def kill(self, *names: str) -> None:
        """Sends SIGKILL to directory servers: their parents and children are not notified."""
        for name in names:
            self.directories[name].kill()

    def variables(self) -> dict[str, str]:
        """Returns the environment variables for command lines of the demo and of its user.

        ``KDIR_AT`` is what a user at the site la would have set.
        """
        found = {f"{variable(name)}_KAFKA": one.bootstrap for name, one in self.brokers.items()}
        found |= {variable(name): one.address for name, one in self.directories.items()}
        if self.directories:
            found["KDIR_AT"] = f"{found['LA']},{found['LA_TRACKING']}"
        return found | {
            "DEMO": str(self.home),
            "KDIR_INDEX": str(self.home / "index"),
            "PATH": f"{_PROGRAMS}{os.pathsep}{os.environ['PATH']}",
        }

    def write_environment(self) -> Path:
        """Writes the variables for `. FILE` in any POSIX shell."""
        file = self.home / "env"
        variables = self.variables()
        del variables["PATH"]  # written below: the demo's, then the shell's own
        lines = [f"export {name}='{value}'" for name, value in variables.items()]
        file.write_text("\n".join([*lines, f"export PATH='{_PROGRAMS}':\"$PATH\""]) + "\n")
        return file


def _each(act: Callable[[str], object], names: Iterable[str]) -> None:
    """Calls ``act`` with all names at once; raises the first error once all calls have ended."""
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(act, name) for name in names]:
            done.result()


# -- what runs, by the records in the demo's folder ------------------------------------------------


def recorded(home: Path) -> list[Path]:
    """Returns the records of the servers that were started and not ended: directories, then
    brokers.
    """
    return sorted(home.glob("directories/*/*.pid")) + sorted(home.glob("kafka/*/*.pid"))


def running(home: Path) -> list[str]:
    """Returns the names of the servers that run."""
    return [record.parent.name for record in recorded(home) if is_recorded(record)]


def take_down(home: Path) -> int:
    """Ends the demo's running servers, directories before brokers; returns their number."""
    ended = 0
    for kind in ("directories", "kafka"):
        records = list(home.glob(f"{kind}/*/*.pid"))
        with ThreadPoolExecutor() as pool:
            ended += sum(pool.map(stop_recorded, records))
    return ended


class ForeignFiles(Exception):
    """A folder holds what no demo made."""


def remove(home: Path) -> None:
    """Removes the demo's data; the folder and its lock file stay.

    Raises:
        ForeignFiles: the folder holds more than a demo makes; nothing was removed.
    """
    places = sorted(home.iterdir())
    for place in places:
        if place.name not in _MADE:
            raise ForeignFiles(
                f"{home} holds {place.name}, which no demo made: nothing was removed; "
                "name another folder with --home"
            )
    for place in places:
        if place.name != "lock":
            shutil.rmtree(place) if place.is_dir() else place.unlink()


@contextmanager
def locked(home: Path, wait_seconds: float = 0) -> Iterator[bool]:
    """Locks the demo's folder until the block or its process ends; yields whether it could."""
    home.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_seconds
    with (home / "lock").open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    yield False
                    return
                time.sleep(0.1)
            else:
                yield True
                return
