"""Runs a real etcd cluster on loopback, each member a process that can be paused or killed.

It calls only etcd's health endpoint: what is in the store, and who may use it, is up to the caller.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from deploy.local import cache, go
from deploy.local.cache import ServerUnavailable
from deploy.local.ports import LOOPBACK, free_port
from deploy.local.process import LocalProcess, StartFailed

VERSION = "3.6.6"
SOURCE = Path(__file__).parent / "etcd"
_PROGRAMS = (".", "./certificates", "go.etcd.io/etcd/etcdutl/v3")
_START_SECONDS = 60


def fetch() -> Path:
    """Returns the folder with the programs etcd, etcdutl and certificates, built by Go if missing.

    Raises:
        ServerUnavailable: Go is missing, or failed.
    """
    return cache.provide(_folder(), _build)


def installed() -> Path:
    """Returns the etcd program; builds nothing.

    Raises:
        ServerUnavailable: it is not there yet.
    """
    folder = cache.find(_folder())
    if folder is None:
        raise ServerUnavailable("etcd is not in the cache: run `make etcd`.")
    return folder / "etcd"


def _folder() -> str:
    names = ("go.mod", "go.sum", "main.go", "certificates/main.go")
    return f"etcd-{VERSION}-{go.digest(SOURCE, names)}"


def _build(target: Path) -> None:
    go.build(SOURCE, _PROGRAMS, target, what="etcd")


@dataclass(frozen=True, slots=True)
class Certificates:
    """A folder with an authority's certificate and some that it signed, all PEM.

    Each certificate is good for a server on loopback, and for a client of its name.
    """

    folder: Path

    @classmethod
    def make(cls, folder: Path, *names: str) -> Self:
        """Creates a new authority, with a certificate for each name.

        Raises:
            ServerUnavailable: the program that makes them is not there yet.
        """
        subprocess.run([installed().with_name("certificates"), folder, *names], check=True)
        return cls(folder)

    @property
    def ca(self) -> Path:
        """The authority's certificate, against which the others are checked."""
        return self.folder / "ca.pem"

    def cert(self, name: str) -> Path:
        """Returns the certificate of one name."""
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        """Returns the private key of one name."""
        return self.folder / f"{name}-key.pem"


class EtcdMember:
    """One member of a cluster; it keeps its ports and data whatever happens to it."""

    def __init__(self, name: str, directory: Path, server: Certificates | None = None) -> None:
        """With certificates, clients need one, too; the member has the one named `server`."""
        self.name = name
        self.directory = directory
        self.data = directory / "data"
        self.port = free_port()
        self.peer_port = free_port()
        self._certificates = server
        # Health checks have no certificate: with TLS they need a port of their own.
        self._health_port = self.port if server is None else free_port()
        self._process: LocalProcess | None = None

    @property
    def endpoint(self) -> str:
        """Where clients connect: host:port."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def peer_url(self) -> str:
        """Where the cluster's other members connect."""
        return f"http://{LOOPBACK}:{self.peer_port}"

    @property
    def peer(self) -> str:
        """Its part of `--initial-cluster`: name=URL."""
        return f"{self.name}={self.peer_url}"

    @property
    def process(self) -> LocalProcess:
        """The process of a member that was started.

        Raises:
            RuntimeError: it never was.
        """
        if self._process is None:
            raise RuntimeError(f"etcd member {self.name} was never started")
        return self._process

    def join(self, command: list[str | Path]) -> None:
        """Starts it for the first time, by a command that names the cluster's members and token."""
        scheme = "http" if self._certificates is None else "https"
        own = [
            f"--name={self.name}",
            f"--data-dir={self.data}",
            f"--listen-client-urls={scheme}://{self.endpoint}",
            f"--advertise-client-urls={scheme}://{self.endpoint}",
            f"--listen-peer-urls={self.peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            *self._tls_flags(),
        ]
        self.directory.mkdir(exist_ok=True)
        self._process = LocalProcess([*command, *own], self.directory / "etcd.log")
        self._process.start()

    def _tls_flags(self) -> list[str]:
        files = self._certificates
        if files is None:
            return []
        return [
            f"--listen-metrics-urls=http://{LOOPBACK}:{self._health_port}",
            f"--cert-file={files.cert('server')}",
            f"--key-file={files.key('server')}",
            f"--trusted-ca-file={files.ca}",
            "--client-cert-auth",
        ]

    def start(self) -> None:
        """Starts it again on its data; without a quorum it runs, but is not ready."""
        self.process.start()

    def await_ready(self) -> None:
        """Returns once it answers linearizable reads, which needs a quorum.

        Raises:
            StartFailed: with the last lines of its log.
        """
        self.process.await_ready(self.healthy, _START_SECONDS)

    def healthy(self) -> bool:
        """True if it answers a linearizable read now."""
        try:
            with urlopen(f"http://{LOOPBACK}:{self._health_port}/health", timeout=2) as page:
                return bool(json.load(page)["health"] == "true")
        except (URLError, TimeoutError, ConnectionError):
            return False

    def stop(self) -> None:
        """Sends SIGTERM, and waits for the end."""
        self.process.stop()

    def kill(self) -> None:
        """Sends SIGKILL: the crash of a member."""
        self.process.kill()

    def pause(self) -> None:
        """Sends SIGSTOP: its connections stay open, nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        """Sends SIGCONT after `pause`."""
        self.process.resume()


class EtcdCluster:
    """A cluster of members with data in a folder of its own, removed when the context ends.

    To cut a member off from its quorum, pause the others.
    """

    def __init__(
        self,
        members: int = 3,
        *,
        certificates: Certificates | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """With certificates, clients use TLS and need one; `flags` are etcd's own."""
        self._program = installed()
        self._member_count = members
        self._certificates = certificates
        self._flags = flags
        self.directory = Path(tempfile.mkdtemp(prefix="kdir-etcd-"))
        self.members: list[EtcdMember] = []

    @property
    def endpoints(self) -> list[str]:
        """Every member's host:port."""
        return [member.endpoint for member in self.members]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _start(self) -> None:
        for attempts_left in (2, 1, 0):
            self._join(self.directory / f"try-{attempts_left}")
            try:
                for member in self.members:
                    member.await_ready()
            except StartFailed:
                logs = [member.process.tail(100) for member in self.members]
                taken = any("address already in use" in log for log in logs)
                if not (taken and attempts_left):
                    raise
                for member in self.members:
                    member.kill()
            else:
                return

    def _join(self, directory: Path) -> None:
        directory.mkdir()
        names = [f"member-{number}" for number in range(self._member_count)]
        self.members = [EtcdMember(name, directory / name, self._certificates) for name in names]
        self._begin(str(directory))

    def _begin(self, token: str) -> None:
        command: list[str | Path] = [
            self._program,
            f"--initial-cluster={self._peers}",
            f"--initial-cluster-token={token}",
            "--log-level=warn",
            *self._flags,
        ]
        for member in self.members:
            member.join(command)

    @property
    def _peers(self) -> str:
        return ",".join(member.peer for member in self.members)

    def restore(self, snapshot: Path, token: str) -> None:
        """Puts a snapshot in place of all that is there, as etcd's manual says: every member is
        ended, gets the snapshot by `etcdutl`, and starts. etcd derives the cluster's id from
        `token`: a new token makes a new id.

        Raises:
            StartFailed
        """
        for member in self.members:
            member.kill()
            shutil.rmtree(member.data, ignore_errors=True)
            subprocess.run(
                [
                    self._program.with_name("etcdutl"),
                    "snapshot",
                    "restore",
                    snapshot,
                    f"--data-dir={member.data}",
                    f"--name={member.name}",
                    f"--initial-cluster={self._peers}",
                    f"--initial-cluster-token={token}",
                    f"--initial-advertise-peer-urls={member.peer_url}",
                ],
                capture_output=True,
                check=True,
            )
        self._begin(token)
        for member in self.members:
            member.await_ready()

    def kill(self) -> None:
        """Ends every member at once, and removes their data."""
        for member in self.members:
            member.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
