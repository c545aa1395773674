"""Bearer tokens go to servers whose certificate names the cluster that was referred to."""

from concurrent import futures
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from kdir.v1 import entry_pb2

from resolver import Resolver
from resolver.errors import HandshakeFailed, KdirError
from tests.integration.identity.conftest import SecureFederation
from tests.integration.identity.test_federation import files, resolved
from tests.support.federation import eventually
from tests.support.identities import Authority, Issued, public_pem, token

SIGNER = ec.generate_private_key(ec.SECP256R1())
CHILD = "kc-child"


class Recorder(grpc.GenericRpcHandler):
    """A server that keeps the tokens that it is sent, and answers nothing."""

    def __init__(self, issued: Issued) -> None:
        self.tokens: list[str] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))
        credentials = grpc.ssl_server_credentials([(issued.key, issued.cert)])
        self.address = f"127.0.0.1:{self._server.add_secure_port('127.0.0.1:0', credentials)}"
        self._server.start()

    def service(self, details: grpc.HandlerCallDetails) -> None:
        """Records the tokens of a call; every method is unimplemented here."""
        self.tokens += [str(value) for key, value in details.invocation_metadata or ()
                        if key == "authorization"]  # fmt: skip

    def stop(self) -> None:
        self._server.stop(None).wait()


@pytest.fixture
def login_key(tmp_path: Path) -> Path:
    file = tmp_path / "login.pem"
    file.write_bytes(public_pem(SIGNER))
    return file


def mount(secure: SecureFederation, path: str, *endpoints: str, child: str = CHILD) -> None:
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=child, endpoints=endpoints))
    secure["/"].entries("CreateEntry", path=path, entry=entry)


def test_a_token_goes_only_to_a_server_whose_certificate_names_the_cluster_referred_to(
    secure: SecureFederation,
    login_key: Path,
    authority: Authority,
    tmp_path: Path,
    cleanup: ExitStack,
) -> None:
    secure.auth = {"jwt_key": str(login_key)}
    root = secure.start("/")
    certificates = {
        "other": authority.server("kc-other"),
        "none": authority.server(),
        "longer": authority.server(f"{CHILD}0"),
        "stranger": Authority(tmp_path / "b").server("kc-stranger"),
        "right": authority.server("kc-right"),
    }
    false = {name: Recorder(issued) for name, issued in certificates.items()}
    for name, server in false.items():
        cleanup.callback(server.stop)
        child = f"kc-{name}" if name in {"right", "stranger"} else f"{CHILD}-{name}"
        mount(secure, f"/{name}", server.address, child=child)
    bearer = token(SIGNER, "ES256")
    bob = authority.issue("bob")
    login: dict[str, Any] = {**files(bob), "token": bearer, "timeout_seconds": 20}
    with Resolver(root.address, **login) as client, bob.channel(root.address) as channel:
        for name in false:
            for _ in range(2):
                with pytest.raises(KdirError) as failed:
                    client.resolve(f"/{name}/x")
                if name != "right":
                    assert isinstance(failed.value, HandshakeFailed), name
                with pytest.raises(KdirError) as recursed:
                    resolved(channel, f"/{name}/x", bearer, recursive=True)
                if name not in {"right", "stranger"}:
                    arguments = f"its certificate does not name cluster {CHILD}-{name}"
                    assert arguments in failed.value.message
                    assert arguments in recursed.value.message
    sent = {name: set(server.tokens) for name, server in false.items()}
    assert sent == {**{name: set() for name in false}, "right": {f"Bearer {bearer}"}}


def test_a_token_follows_a_server_whose_certificate_is_replaced(
    secure: SecureFederation, login_key: Path, authority: Authority
) -> None:
    secure.auth = {"jwt_key": str(login_key)}
    root = secure.start("/")
    la = secure.join("/la", "/")
    la.mkdir("/la/search")
    bearer = token(SIGNER, "ES256")
    bob = authority.issue("bob")
    with (
        Resolver(root.address, **files(bob), token=bearer, max_entries=0) as client,
        bob.channel(root.address) as channel,
    ):
        for _ in range(2):
            found = client.resolve("/la/search", prefer="directory", timeout_seconds=20)
            assert found.cluster_id == la.cluster_id
            answer = resolved(channel, "/la/search", bearer, recursive=True)
            assert answer.authority.cluster.cluster_id == la.cluster_id
            # Another key, and no connection of before.
            secure.issued["/la"].take(authority.server(la.cluster_id))
            la.stop()
            la.restart()
            eventually(lambda: la.outcome("/la/search") == "resolution")
