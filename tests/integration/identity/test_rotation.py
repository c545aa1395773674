"""Certificates and tokens that are replaced on disk while servers and clients run (G8)."""

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from kdir.v1 import admin_pb2, watch_pb2

from resolver import Resolver
from resolver.transport import GrpcTransport, method
from tests.integration.identity.conftest import SecureFederation
from tests.support.federation import Server, eventually
from tests.support.identities import Authority, Issued


def shown(server: Server, admin: Issued) -> int:
    """Returns the serial number of the certificate that a new handshake is shown."""
    context = ssl.create_default_context(cafile=str(admin.files["ca"]))
    context.load_cert_chain(admin.files["cert"], admin.files["key"])
    context.set_alpn_protocols(["h2"])
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    with plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        der = secure.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def serial(issued: Issued) -> int:
    return x509.load_pem_x509_certificate(issued.cert).serial_number


class Watching:
    """A watch that is open, and what it has told."""

    def __init__(self, server: Server) -> None:
        request = watch_pb2.WatchRequest(path="/", checkpoint_seconds=1)
        self.call = server.watch_stub().Watch(request)
        self.seen: list[str] = []
        self.failure: grpc.RpcError | None = None
        self.begun = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.begun.wait(20)

    def _read(self) -> None:
        try:
            answers: Iterator[watch_pb2.WatchResponse] = iter(self.call)
            for answer in answers:
                self.begun.set()
                self.seen += [event.path for event in answer.events]
        except grpc.RpcError as error:
            self.failure = error


def test_G8_new_handshakes_use_a_rotated_certificate_and_open_streams_go_on(
    secure: SecureFederation, authority: Authority
) -> None:
    root = secure.start("/")
    la = secure.join("/la", "/")
    assert shown(root, secure.admin) == serial(secure.issued["/"])
    watching = Watching(root)
    received = la.process.log.read_text().count("linked to parent")
    for mount in ("/", "/la"):
        issued = secure.issued[mount]
        before = serial(issued)
        issued.take(authority.server(secure[mount].cluster_id))
        assert shown(secure[mount], secure.admin) == serial(issued) != before
    # A key whose certificate is not there yet is not taken; what was before stays.
    good = serial(secure.issued["/"])
    key = secure.issued["/"].files["key"]
    kept = key.read_bytes()
    key.write_bytes(authority.server().key)
    assert shown(root, secure.admin) == good
    key.write_bytes(kept)
    root.mkdir("/after")
    eventually(lambda: "/after" in watching.seen)
    assert watching.failure is None
    watching.call.cancel()
    assert la.status().parent.linked
    assert la.process.log.read_text().count("linked to parent") == received
    assert "is not taken" in root.process.log.read_text()
    # A link that begins anew uses what is there now.
    root.restart()
    eventually(lambda: la.status().parent.linked, 40)


def test_a_client_whose_certificate_is_replaced_goes_on_as_another_principal(
    secure: SecureFederation, authority: Authority
) -> None:
    root = secure.start("/")
    mine = authority.issue("before")
    files = {part: str(file) for part, file in mine.files.items()}
    with Resolver(root.address, max_stale_seconds=0, timeout_seconds=10, **files) as client:  # type: ignore[arg-type]

        def made_by(name: str) -> str:
            from kdir.v1 import admin_pb2

            from resolver.transport import method

            status = method("AdminService.GetStatus")
            request = admin_pb2.GetStatusRequest()
            return str(client.transport.call(root.address, status, request, 10).principal)

        assert made_by("x") == "User:before"
        mine.take(authority.issue("after"))
        eventually(lambda: made_by("y") == "User:after")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o600])
def test_a_token_file_is_read_again_and_nobody_else_may_read_it(tmp_path: Path, mode: int) -> None:
    from resolver.credentials import UserCredentials
    from resolver.errors import InvalidArgument
    from resolver.user_config import LoginSettings

    file = tmp_path / "token"
    file.write_text("first\n")
    file.chmod(mode)
    if mode & 0o004:
        with pytest.raises(InvalidArgument, match=f"chmod 600 {file}"):
            UserCredentials(LoginSettings(token_file=str(file)))
        return
    credentials = UserCredentials(LoginSettings(token_file=str(file)))
    assert credentials.metadata() == (("authorization", "Bearer first"),)
    with pytest.raises(InvalidArgument, match="over TLS only"):
        GrpcTransport(credentials).call(
            "la-1.example:7420", method("AdminService.GetStatus"), admin_pb2.GetStatusRequest(), 10
        )
    file.write_text("second one")  # a torn or wrong file leaves what was
    file.write_text("third")
    eventually(lambda: credentials.metadata() == (("authorization", "Bearer third"),))
