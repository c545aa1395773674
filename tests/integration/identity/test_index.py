"""The index's crawl over TLS: who it is for is said by the environment, as executors have it."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from kdir.v1 import admin_pb2, admin_pb2_grpc, scan_pb2, scan_pb2_grpc

from resolver.errors import HandshakeFailed, Unreachable
from resolver.index.cluster_discovery import channel_to, discover_clusters
from tests.integration.identity.conftest import SecureFederation
from tests.support.identities import public_pem, token


def test_a_crawl_finds_clusters_over_tls_in_the_name_that_the_environment_says(
    secure: SecureFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signer = ec.generate_private_key(ec.SECP256R1())
    key = tmp_path / "login.pem"
    key.write_bytes(public_pem(signer))
    secure.auth = {"jwt_key": str(key)}
    root = secure.start("/")
    secure.join("/la", "/")
    with pytest.raises(Unreachable):
        discover_clusters([root.address], ask_seconds=5)
    for part, file in secure.admin.files.items():
        monkeypatch.setenv(f"KDIR_{part.upper()}", str(file))
    topic_counts = discover_clusters([root.address], ask_seconds=10)
    assert sorted(str(one.state.mount) for one in topic_counts.answered.values()) == ["/", "/la"]
    monkeypatch.setenv("KDIR_TOKEN", token(signer, "ES256", sub="crawler"))
    topic_counts = discover_clusters([root.address], ask_seconds=10)
    assert sorted(str(one.state.mount) for one in topic_counts.answered.values()) == ["/", "/la"]
    with pytest.raises(HandshakeFailed, match="names no cluster, and so no token is sent"):
        channel_to(root.address).__enter__()
    with channel_to(root.address, root.cluster_id):
        pass
    with channel_to(root.address, named=[root.address]) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        status = stub.GetStatus(admin_pb2.GetStatusRequest(), timeout=10)
        assert status.principal == "User:crawler"
        scan = scan_pb2_grpc.ScanServiceStub(channel)
        page = scan.ScanTopics(scan_pb2.ScanTopicsRequest(), timeout=10)
        assert page.authority.cluster.mount == "/"
