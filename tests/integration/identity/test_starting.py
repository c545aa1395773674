"""What a server says at its start of its own certificate, and that all its doors have the same."""

import datetime as dt
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from directory.api.rpc.listener import NotReadyServer
from directory.server.authentication import Authenticator
from directory.server.config_security import AuthConfig, TlsConfig
from resolver import Resolver
from resolver.errors import HandshakeFailed, NotReady
from tests.support.federation import Server
from tests.support.identities import Authority, Issued
from tests.support.server_command import serve


def started(tmp_path: Path, issued: Issued, *options: str) -> subprocess.CompletedProcess[str]:
    lines = [f'{part} = "{file}"' for part, file in issued.files.items()]
    config = tmp_path / "server.toml"
    config.write_text(
        "\n".join(['listen = "127.0.0.1:0"', 'store = "sqlite:///s"', "[tls]", *lines])
    )
    return serve("--config", str(config), *options)


def test_a_certificate_that_cannot_be_used_ends_it_with_2_and_touches_nothing(
    tmp_path: Path, authority: Authority
) -> None:
    expired = authority.server(ends=dt.timedelta(hours=-1))
    for options in ((), ("--check",)):
        ran = started(tmp_path, expired, *options)
        assert ran.returncode == 2
        assert f"tls.cert: {expired.files['cert']}: the certificate expired at" in ran.stderr
        assert "Traceback" not in ran.stderr
    assert not (tmp_path / "s").exists()
    good = started(tmp_path, authority.server(), "--check")
    assert good.returncode == 0
    assert "TLS: on; callers authenticate by a client certificate" in good.stdout


def test_a_server_that_waits_for_its_store_has_the_same_door(authority: Authority) -> None:
    own = authority.server()
    tls = TlsConfig(**{part: str(file) for part, file in own.files.items()})
    waiting = NotReadyServer(
        "127.0.0.1:0", identities=Authenticator(tls, AuthConfig(allow_anonymous=False))
    )
    files = {part: str(file) for part, file in authority.issue("bob").files.items()}
    try:
        client = Resolver(waiting.address, **files)  # type: ignore[arg-type]
        with client, pytest.raises(NotReady):
            client.resolve("/")
        stranger = Resolver(waiting.address, ca=files["ca"])
        with stranger, pytest.raises(HandshakeFailed):
            stranger.resolve("/")
    finally:
        waiting.stop()


def test_processes_that_share_a_port_share_a_certificate_and_health_needs_no_name(
    tmp_path: Path, authority: Authority
) -> None:
    own, bob = authority.server(), authority.issue()
    settings = {"tls": own.tls(), "auth": {"allow_anonymous": False}}
    with Server(tmp_path / "two", "/", settings, processes=2) as server:
        for _ in range(6):
            with bob.channel(server.address) as channel:
                health: Any = health_pb2_grpc.HealthStub(channel)
                request = health_pb2.HealthCheckRequest()
                answer = health.Check(request, timeout=10, wait_for_ready=True)
                assert answer.status in {
                    health_pb2.HealthCheckResponse.SERVING,
                    health_pb2.HealthCheckResponse.NOT_SERVING,
                }
                call: Any = channel.unary_unary("/kdir.v1.ResolveService/Resolve")
                with pytest.raises(grpc.RpcError) as refused:
                    call(b"", timeout=10)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert "no rule of auth.principal_mapping_rules" in str(refused.value.details())


def test_a_refused_handshake_leaves_a_log_of_json(tmp_path: Path, authority: Authority) -> None:
    own = authority.server()
    environment = {"KDIR_LOG_FORMAT": "json"}
    with Server(tmp_path / "one", "/", {"tls": own.tls()}, environment=environment) as server:
        stranger = Resolver(server.address, ca=str(authority.file))
        with stranger, pytest.raises(HandshakeFailed):
            stranger.resolve("/")
        server.stop()
        lines = server.process.log.read_text().splitlines()
    for line in lines:
        assert line.startswith("{"), line
