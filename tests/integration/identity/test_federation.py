"""Servers that know each other by certificate, and callers by certificate or token (G7)."""

import datetime as dt
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from kdir.v1 import (
    admin_pb2,
    entry_pb2,
    federation_pb2,
    federation_pb2_grpc,
    resolve_pb2,
    resolve_pb2_grpc,
)

from resolver import Resolver
from resolver.error_status import from_rpc_error
from resolver.errors import (
    HandshakeFailed,
    KdirError,
    PermissionDenied,
    Unauthenticated,
    Unreachable,
)
from resolver.transport import method
from tests.integration.identity.conftest import SecureFederation
from tests.support.federation import Server, eventually
from tests.support.identities import Authority, Issued, public_pem, token

SIGNER = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def login_key(tmp_path: Path) -> Path:
    file = tmp_path / "login.pem"
    file.write_bytes(public_pem(SIGNER))
    return file


def files(issued: Issued) -> dict[str, Any]:
    return {part: str(file) for part, file in issued.files.items()}


def resolved(
    channel: grpc.Channel, path: str, bearer: str = "", *, recursive: bool = False
) -> resolve_pb2.ResolveResponse:
    stub = resolve_pb2_grpc.ResolveServiceStub(channel)
    metadata = (("authorization", f"Bearer {bearer}"),) if bearer else ()
    request = resolve_pb2.ResolveRequest(path=path, recursive=recursive)
    try:
        answer: resolve_pb2.ResolveResponse = stub.Resolve(request, timeout=10, metadata=metadata)
    except grpc.RpcError as error:
        raise from_rpc_error(error, secure=True) from None
    return answer


def seen_as(client: Resolver) -> str:
    """Returns whom the server takes a client for."""
    answer = client.transport.call(
        client.servers[0], method("AdminService.GetStatus"), admin_pb2.GetStatusRequest(), 10
    )
    return str(answer.principal)


def hello(issued: Issued, server: Server, cluster_id: str, mount: str) -> KdirError:
    """Returns what a parent says to a hello."""
    output = federation_pb2.LinkRequest(
        hello=federation_pb2.Hello(cluster_id=cluster_id, cluster="x", mount=mount)
    )
    with issued.channel(server.address) as channel:
        call = federation_pb2_grpc.FederationServiceStub(channel).Link(iter([output]), timeout=10)
        with pytest.raises(grpc.RpcError) as refused:
            next(iter(call))
    return from_rpc_error(refused.value, secure=True)


def test_three_clusters_over_mtls_resolve_from_anywhere(
    secure: SecureFederation, tmp_path: Path
) -> None:
    secure.start("/")
    secure.join("/la", "/")
    secure.join("/la/tracking", "/la")
    secure["/la/tracking"].mkdir("/la/tracking/search")
    eventually(lambda: set(secure["/"].mounted()) == {"/la", "/la/tracking"})
    eventually(lambda: "/la" in secure["/la/tracking"].mounted())
    for server in secure.servers.values():
        with Resolver(server.address, **files(secure.admin)) as client:
            found = client.resolve("/la/tracking/search", prefer="directory")
            assert found.cluster_id == secure["/la/tracking"].cluster_id
    listed = secure["/la/tracking"].entries("GetEntry", path="/la/tracking/search")
    assert listed.entry.changed_by == "User:admin"
    plain = Resolver(secure["/"].address)
    with plain, pytest.raises(Unreachable, match="does it want TLS"):
        plain.resolve("/la")


def test_G7_a_handshake_fails_with_a_reason(
    secure: SecureFederation, authority: Authority, tmp_path: Path
) -> None:
    server = secure.start("/")
    cases = {
        "none": ({"ca": str(authority.file)}, "does it not take the certificate"),
        "expired": (
            files(authority.issue("bob", ends=dt.timedelta(hours=-1))),
            "does it not take the certificate",
        ),
        "not yet": (
            files(authority.issue("bob", begins=dt.timedelta(hours=1))),
            "does it not take the certificate",
        ),
        "other CA's": (
            {**files(Authority(tmp_path / "b").issue("bob")), "ca": str(authority.file)},
            "does it not take the certificate",
        ),
        "other CA believed": (
            {**files(authority.issue("bob")), "ca": str(Authority(tmp_path / "c").file)},
            "its certificate is of no CA that is trusted here",
        ),
    }
    for name, (login, arguments) in cases.items():
        client = Resolver(server.address, **login)
        with client, pytest.raises(HandshakeFailed) as refused:
            client.resolve("/x")
        assert arguments in refused.value.message, name
        assert refused.value.exit_code == 4
    client = Resolver(f"localhost:{server.port}", **files(secure.admin))
    with client, pytest.raises(HandshakeFailed, match="not for the name that was dialled"):
        client.resolve("/x")
    # The server goes on.
    assert server.outcome("/") == "resolution"


def test_G7_a_link_is_taken_only_of_the_cluster_that_the_certificate_names(
    secure: SecureFederation, authority: Authority
) -> None:
    root = secure.start("/")
    la = secure.join("/la", "/")
    other = authority.server("kc-other")
    refused = hello(other, root, la.cluster_id, "/la")
    assert isinstance(refused, PermissionDenied)
    assert f"the hello says cluster {la.cluster_id}" in refused.message
    assert "the certificate says kc-other" in refused.message
    refused = hello(secure.admin, root, la.cluster_id, "/la")
    assert isinstance(refused, PermissionDenied)
    assert f"expected its URI kdir://cluster/{la.cluster_id}" in refused.message
    assert la.status().parent.linked
    # With its own certificate, and of a mount that is another's, it is told as ever.
    assert hello(other, root, "kc-other", "/la").reason == "UNKNOWN_CHILD"


def test_G7_a_cluster_s_certificate_carries_no_user_s_rights(
    secure: SecureFederation, authority: Authority
) -> None:
    root = secure.start("/")
    channel = secure.issued["/"].channel(root.address)
    with channel, pytest.raises(Unauthenticated, match="carries no user's rights"):
        resolved(channel, "/")


def test_a_parent_that_asks_for_no_certificates_takes_no_child(
    secure: SecureFederation, login_key: Path
) -> None:
    secure.tls, secure.auth = (
        {"client_auth": "none"},
        {"jwt_key": str(login_key), "allow_anonymous": True},
    )
    root = secure.start("/")
    la = secure.start("/la", "/")
    entry = entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id=la.cluster_id))
    root.entries("CreateEntry", path="/la", entry=entry)
    eventually(lambda: '[tls] client_auth = "require"' in la.status().parent.message)


def test_tokens_say_who_and_a_token_goes_before_the_certificate(
    secure: SecureFederation, login_key: Path, authority: Authority
) -> None:
    secure.auth = {"jwt_key": str(login_key), "audience": "kdir"}
    root = secure.start("/")
    bearer = token(SIGNER, "ES256", aud="kdir", sub="carol")
    bob = authority.issue("bob")
    logins: dict[str, dict[str, Any]] = {"bob": {}, "carol": {"token": bearer}}
    who = {}
    for name, login in logins.items():
        with Resolver(root.address, **files(bob), **login) as client:
            who[name] = seen_as(client)
    assert who == {"bob": "User:bob", "carol": "User:carol"}
    with bob.channel(root.address) as channel:
        assert resolved(channel, "/", bearer).outcome.HasField("resolution")
        forged = token(ec.generate_private_key(ec.SECP256R1()), "ES256", aud="kdir")
        with pytest.raises(Unauthenticated, match="the token's signature is not right"):
            resolved(channel, "/", forged)
        with pytest.raises(Unauthenticated, match="another audience"):
            resolved(channel, "/", token(SIGNER, "ES256", aud="kafka"))


def test_recursion_hands_on_the_caller_s_token_and_never_its_own_rights(
    secure: SecureFederation, login_key: Path, authority: Authority
) -> None:
    secure.auth = {"jwt_key": str(login_key)}
    root = secure.start("/")
    la = secure.join("/la", "/")
    la.mkdir("/la/search")
    bearer = token(SIGNER, "ES256")
    with authority.issue("bob").channel(root.address) as channel:
        # Known by the certificate alone: this server cannot speak for it.
        assert resolved(channel, "/la/search", recursive=True).outcome.HasField("referral")
        answer = resolved(channel, "/la/search", bearer, recursive=True)
        assert answer.outcome.resolution.entry.path == "/la/search"
        assert answer.authority.cluster.cluster_id == la.cluster_id
    # Both ways lead there.
    bob = files(authority.issue("bob"))
    logins: tuple[dict[str, Any], ...] = ({}, {"token": bearer})
    for login in logins:
        with Resolver(root.address, recursive=True, **bob, **login) as client:
            found = client.resolve("/la/search", prefer="directory")
            assert found.cluster_id == la.cluster_id


def test_without_tls_a_token_says_who_on_this_machine(tmp_path: Path, login_key: Path) -> None:
    settings = {"auth": {"jwt_key": str(login_key)}}
    with Server(tmp_path / "plain", "/", settings) as server:
        with pytest.raises(Unauthenticated, match="no token was sent"):
            server.resolve("/")
        with Resolver(server.address, token=token(SIGNER, "ES256")) as client:
            assert seen_as(client) == "User:alice"
        server.close()
