"""Servers with TLS, each with a certificate of one CA that names its cluster."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.federation import Federation, Server
from tests.support.identities import Authority, Issued


class SecureFederation(Federation):
    """A federation over mTLS; the tests' own stubs call as ``User:admin``."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        super().__init__(directory)
        self.authority = authority
        self.admin = authority.issue("admin")
        self.issued: dict[str, Issued] = {}
        self.tls: dict[str, Any] = {}
        """Added to each server's [tls]."""
        self.auth: dict[str, Any] = {}

    def make(self, folder: Path, mount: str, settings: Mapping[str, Any]) -> Server:
        issued = self.issued[mount] = self.authority.server()
        auth = {"auth": self.auth} if self.auth else {}
        server = Server(folder, mount, {"tls": issued.tls(**self.tls), **auth, **settings})
        server.credentials = self.admin.credentials()
        return server

    def start(self, mount: str, parent: str | None = None, **settings: Any) -> Server:
        """Starts a server and issues its certificate: the cluster's id is known once the server has
        started.
        """
        server = super().start(mount, parent, **settings)
        self.issued[mount].take(self.authority.server(server.cluster_id))
        return server


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def secure(tmp_path: Path, authority: Authority) -> Iterator[SecureFederation]:
    with SecureFederation(tmp_path / "servers", authority) as federation:
        yield federation
