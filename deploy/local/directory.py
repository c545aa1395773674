"""Runs real directory servers on loopback: a process each, config and data in a folder of its own.

It starts, stops, kills and pauses them; their trees are up to the caller.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from deploy.local.ports import LOOPBACK, free_port
from deploy.local.process import LocalProcess

__all__ = ["DirectoryProcess"]

_SERVING = re.compile(r"^serving (?P<mount>/\S*) \((?P<cluster>\S+) (?P<id>\S+)\) on (?P<at>\S+)$")
_START_SECONDS = 30


class DirectoryProcess:
    """One directory server as a process.

    Args:
        directory: where its config, log and store are; made if missing.
        mount: of its cluster, such as ``/la/tracking``.
        settings: further keys of its config, tables as dicts.
        port: where it listens on loopback; None: a free one.
        processes: how many share its port.
        environment: variables beside those of this process.
        module: run by ``python -m``; tests have modules that stand for other releases.
        detached: whether it outlives this process (see ``process.stop_recorded``).
    """

    def __init__(
        self,
        directory: Path,
        mount: str,
        settings: Mapping[str, Any] | None = None,
        *,
        port: int | None = None,
        processes: int = 1,
        environment: Mapping[str, str] | None = None,
        module: str = "directory",
        detached: bool = False,
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.mount = mount
        self.cluster = mount.strip("/").replace("/", "-") or "root"
        self.port = port or free_port()
        self.address = f"{LOOPBACK}:{self.port}"
        self.config = directory / "server.toml"
        self.settings: dict[str, Any] = {
            "cluster": self.cluster,
            "mount": mount,
            "listen": self.address,
            "store": f"sqlite:///{directory / 'store.sqlite'}",
            **(settings or {}),
        }
        self.process = LocalProcess(
            [
                *(sys.executable, "-m", module, "--config", self.config),
                *(("--processes", str(processes)) if processes > 1 else ()),
            ],
            directory / "server.log",
            environment=environment,
            detached=detached,
        )

    def start(self) -> Self:
        """Starts it and waits until it is bound.

        Raises:
            StartFailed: with the last lines of its log.
        """
        self.config.write_text(_toml(self.settings))
        self.process.log.unlink(missing_ok=True)
        self.process.start()
        self.process.await_ready(lambda: self._serving() is not None, _START_SECONDS)
        return self

    def _serving(self) -> re.Match[str] | None:
        for line in self.process.log.read_text(errors="replace").splitlines():
            found = _SERVING.match(_message(line))
            if found:
                return found
        return None

    @property
    def cluster_id(self) -> str:
        """The cluster id that it printed at its start."""
        found = self._serving()
        if found is None:
            raise RuntimeError(f"{self.cluster} has not started")
        return found["id"]

    @property
    def listens_at(self) -> str:
        """The address that it printed at its start, with the port where it chose one itself."""
        found = self._serving()
        if found is None:
            raise RuntimeError(f"{self.cluster} has not started")
        return found["at"]

    def stop(self) -> None:
        """Sends SIGTERM, and waits for the end."""
        self.process.stop()

    def kill(self) -> None:
        """Sends SIGKILL: the crash of a server."""
        self.process.kill()

    def pause(self) -> None:
        """Sends SIGSTOP: its sockets stay open, nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        """Sends SIGCONT."""
        self.process.resume()

    def restart(self) -> Self:
        """Stops it if it runs, and starts it again on the same port and data."""
        self.process.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.process.kill()


def _toml(settings: Mapping[str, Any], table: str = "") -> str:
    """Returns TOML, as far as configs need it: scalars, lists, tables of tables."""
    lines = [f"[{table}]"] if table else []
    tables: list[str] = []
    for key, value in settings.items():
        name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)
        if isinstance(value, Mapping):
            tables.append(_toml(value, f"{table}.{name}" if table else name))
        else:
            lines.append(f"{name} = {_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)


def _message(line: str) -> str:
    """Returns the message of a line of a log, also where that is JSON."""
    if not line.startswith("{"):
        return line
    with contextlib.suppress(ValueError):
        return str(json.loads(line).get("message", ""))
    return ""
