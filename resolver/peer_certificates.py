"""Reads the cluster id in a server's certificate before a bearer token is sent to the server.

gRPC for Python compares a server's certificate only with the name that was dialled
(grpc/grpc#32635). So the certificate is first read over a separate connection. The connection of
the calls then trusts exactly that certificate and no CA: a server without the certificate's key
cannot take over between the check and the use.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from resolver.deadline_shares import LEAST_SECONDS
from resolver.errors import DeadlineExceeded, HandshakeFailed, KdirError, Unreachable
from resolver.handshake_errors import CLOSED, why_not_trusted
from resolver.host_port import parse_endpoint
from resolver.keyed_slots import KeyedSlots

if TYPE_CHECKING:
    import socket
    import ssl

    import grpc

__all__ = [
    "CLUSTER_URI",
    "MOST_READ_AT_ONCE",
    "PeerCertificates",
    "TlsMaterial",
    "read_certificate",
    "try_handshake",
]

CLUSTER_URI: Final = "kdir://cluster/"
"""Prefix of the URI that names a cluster in a certificate; the cluster id follows."""
_READ_SECONDS: Final = 5.0
"""Time limit to connect and shake hands, for all addresses together; also the longest wait for a
slot.
"""
MOST_READ_AT_ONCE: Final = 64
"""Most certificates that are read at the same time."""
_MOST_SERVERS: Final = 1000
_MOST_CERTIFICATES: Final = 16
"""Most certificates of one endpoint: behind a load balancer each server may have its own."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """CA, certificate and key for TLS, in PEM, with the files of the certificate and key. The repr
    shows only the files.
    """

    ca: bytes = field(repr=False)
    """Certificates of the CA that issues trusted server certificates."""
    key: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key_file: str = ""
    cert_file: str = ""

    def channel_credentials(self, trusted: bytes = b"") -> grpc.ChannelCredentials:
        """Returns credentials for connections to servers that present one of the ``trusted``
        certificates (PEM); empty = any certificate of the CA.
        """
        import grpc  # lazy: readers of a config import CLUSTER_URI before gRPC's log is set up

        return grpc.ssl_channel_credentials(trusted or self.ca, self.key, self.cert)


Reader = Callable[[str, str, TlsMaterial], bytes]


class PeerCertificates:
    """Reader and cache of server certificates that name the server's cluster. Thread-safe.

    An object is for one ``TlsMaterial``: another CA needs another object.

    Args:
        slots: limit of concurrent reads, in total and for each caller; default:
            ``MOST_READ_AT_ONCE`` each.
    """

    def __init__(
        self,
        material: TlsMaterial,
        read: Reader | None = None,
        slots: KeyedSlots | None = None,
    ) -> None:
        self._material: Final = material
        self._read: Final = read or read_certificate
        self._slots: Final = slots or KeyedSlots(MOST_READ_AT_ONCE, MOST_READ_AT_ONCE)
        self._lock: Final = threading.Lock()
        self._known: Final[dict[tuple[str, str], tuple[bytes, ...]]] = {}
        self._reading: Final[dict[tuple[str, str], Future[bytes]]] = {}

    def known(self, endpoint: str, cluster_id: str) -> bytes:
        """Returns the known certificates of an endpoint, PEM; empty if none was read yet."""
        return b"".join(self._known.get((endpoint, cluster_id), ()))

    def read(
        self, endpoint: str, cluster_id: str, timeout_seconds: float, *, caller: str = ""
    ) -> bytes:
        """Connects to a server, and returns its known certificates, PEM, including the one that it
        presents now. Concurrent reads of one endpoint and cluster are shared; every other read
        takes a slot of ``caller``.

        Raises:
            HandshakeFailed: the certificate is not trusted, or does not name the cluster.
            Unreachable, DeadlineExceeded: no connection, or not in time.
        """
        deadline = time.monotonic() + timeout_seconds
        reading = self._begin((endpoint, cluster_id), caller, timeout_seconds)
        try:
            # Not what is known afterwards: other readings may have evicted it by then.
            return reading.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise DeadlineExceeded(
                f"{endpoint}: showed no certificate within {timeout_seconds:.2f} s"
            ) from None
        except KdirError as error:
            raise error.copy() from None  # several threads may wait for it

    def _begin(self, key: tuple[str, str], caller: str, timeout_seconds: float) -> Future[bytes]:
        with self._lock:
            reading = self._reading.get(key)
        if reading is not None:
            return reading
        if not self._slots.take(caller, wait_seconds=min(timeout_seconds, _READ_SECONDS)):
            raise Unreachable(f"{key[0]}: too many certificates are being read")
        begun: Future[bytes] = Future()
        with self._lock:
            reading = self._reading.setdefault(key, begun)
        if reading is not begun:
            self._slots.give_back(caller)  # another thread began to read it meanwhile
            return reading
        try:
            # A thread of its own: looking up a name has no time limit.
            threading.Thread(
                target=self._run, args=(key, begun, caller), name="peer-certificate", daemon=True
            ).start()
        except RuntimeError as error:  # no more threads, or the interpreter ends
            self._end(key, caller)
            begun.set_exception(Unreachable(f"{key[0]}: its certificate is not read: {error}"))
        return begun

    def _run(self, key: tuple[str, str], reading: Future[bytes], caller: str) -> None:
        try:
            found = self._read(*key, self._material)
        except BaseException as error:  # noqa: BLE001 - raised in the threads that wait
            self._end(key, caller)
            is_known = isinstance(error, KdirError)
            reading.set_exception(error if is_known else Unreachable(f"{key[0]}: {error!r}"))
            return
        with self._lock:
            before = self._known.get(key, ())
            if found not in before:
                self._known[key] = (*before[1 - _MOST_CERTIFICATES :], found)
            known = b"".join(self._known[key])
            while len(self._known) > _MOST_SERVERS:
                del self._known[next(iter(self._known))]
        self._end(key, caller)
        reading.set_result(known)

    def _end(self, key: tuple[str, str], caller: str) -> None:
        with self._lock:
            self._reading.pop(key, None)
        self._slots.give_back(caller)


def read_certificate(endpoint: str, cluster_id: str, material: TlsMaterial) -> bytes:
    """Returns the certificate that a server presents, PEM, if it names the cluster.

    Raises:
        HandshakeFailed: it is not trusted, is for another host, or names another cluster or none.
        Unreachable: no connection.
    """
    import ssl

    if not cluster_id:
        raise HandshakeFailed(
            f"{endpoint}: the referral names no cluster, and so no token is sent there"
        )
    with _handshake(endpoint, material) as peer:
        names = (peer.getpeercert() or {}).get("subjectAltName", ())
        shown = peer.getpeercert(binary_form=True) or b""
    if ("URI", f"{CLUSTER_URI}{cluster_id}") not in names:
        raise HandshakeFailed(
            f"{endpoint}: its certificate does not name cluster {cluster_id} (its URI would be "
            f"{CLUSTER_URI}{cluster_id}), and so no token is sent there"
        )
    return ssl.DER_cert_to_PEM_cert(shown).encode()


def try_handshake(endpoint: str, _cluster_id: str, material: TlsMaterial) -> bytes:
    """Makes a handshake at the first reachable address of a server whose name has several
    addresses. Returns empty bytes.

    gRPC reports only the error of the last address, such as a refused connection, even if the
    handshake failed at another one.

    Raises:
        HandshakeFailed: one side does not take the other's certificate.
        Unreachable: no connection.
    """
    with _handshake(endpoint, material, least_addresses=2) as peer:
        # With TLS 1.3 a server checks this side's certificate after the handshake; if it accepts
        # it, it sends its settings (RFC 9113, section 3.4).
        try:
            received = peer.recv(1)
        except ConnectionResetError:
            received = b""
        if not received:
            raise HandshakeFailed(f"{endpoint}: Socket closed; {CLOSED}")
    return b""


@contextlib.contextmanager
def _handshake(
    endpoint: str, material: TlsMaterial, least_addresses: int = 1
) -> Iterator[ssl.SSLSocket]:
    """Connects to a server and makes a handshake; closes the connection at the end of the block.

    Raises:
        HandshakeFailed, Unreachable: also for errors of the block's reads from the connection.
    """
    import socket
    import ssl

    place = parse_endpoint(endpoint)
    context = _context(material)
    try:
        # A name lookup has no time limit, and does not count as time of the server.
        addresses = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        if len(addresses) < least_addresses:
            raise Unreachable(f"{endpoint}: its name has one address")
        deadline = time.monotonic() + _READ_SECONDS
        with (
            _connection(addresses, deadline) as connection,
            context.wrap_socket(connection, server_hostname=place.host) as peer,
        ):
            yield peer
    except ssl.SSLCertVerificationError as error:
        raise HandshakeFailed(f"{endpoint}: {why_not_trusted(error)}") from None
    except ssl.SSLError as error:
        raise HandshakeFailed(f"{endpoint}: the handshake failed: {error.reason}") from None
    except TimeoutError:
        raise Unreachable(f"{endpoint}: no connection within {_READ_SECONDS:g} s") from None
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{endpoint}: no connection: {error}") from None


def _connection(addresses: Sequence[Any], deadline: float) -> socket.socket:
    """Connects to the first address that answers; each gets an equal part of the remaining time.

    Raises:
        OSError: no address answered; the error of the last one.
    """
    import socket

    failure = OSError("the name has no address")
    for place, (family, kind, protocol, _, address) in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(left / (len(addresses) - place))
            made.connect(address)
        except OSError as error:
            made.close()
            failure = error
        else:
            # A limit for the whole handshake, however slowly its bytes arrive.
            made.settimeout(max(LEAST_SECONDS, deadline - time.monotonic()))
            return made
    raise failure


def _context(material: TlsMaterial) -> ssl.SSLContext:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does
    context.load_verify_locations(cadata=material.ca.decode("ascii", "ignore"))
    context.set_alpn_protocols(["h2"])
    if material.cert_file:
        # The files may be half replaced; with TLS 1.3 the server's certificate is received anyway.
        with contextlib.suppress(ssl.SSLError, OSError):
            context.load_cert_chain(material.cert_file, material.key_file, password="")
    return context
