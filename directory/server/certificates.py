"""Reads and checks a server's own certificate; the names in a peer's certificate; credentials for
calls to other servers.

TLS itself is gRPC's. With a wrong file, gRPC fails each client's handshake without a reason, so the
files are read here first, and errors in them are reported.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import grpc

from directory.server.config_security import TlsConfig
from directory.server.principal_mapping import CertificateNames
from directory.server.shared_channels import SharedChannel, SharedChannels
from directory.server.toml_table import ConfigError
from resolver.errors import Unauthenticated
from resolver.extras import missing_extra
from resolver.file_reload import ReloadingValue
from resolver.host_port import parse_endpoint
from resolver.peer_certificates import TlsMaterial
from resolver.transport import Metadata

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = ["Certificates", "KeyMaterial", "PeerCredentials", "names_of", "read_material"]


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """Certificate, key and CA for TLS, PEM. Its repr does not contain the key."""

    cert: bytes
    key: bytes
    ca: bytes
    names: CertificateNames
    expires: dt.datetime

    def __repr__(self) -> str:
        return f"KeyMaterial({self.names})"


def read_material(tls: TlsConfig, now: dt.datetime | None = None) -> KeyMaterial:
    """Reads the files of ``[tls]``.

    Raises:
        ConfigError: a file is missing or not PEM, the key does not belong to the certificate, the
            certificate is expired or not valid yet, or all certificates of the CA are expired.
    """
    if missing := missing_extra("[tls]", "identity", "cryptography"):
        raise ConfigError(missing)
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    cert, key, ca = (_read(name, file) for name, file in zip(_KEYS, tls.files, strict=True))
    own = _certificates(tls.cert, "cert", cert)[0]
    signers = _certificates(tls.ca, "ca", ca)
    try:
        private = load_pem_private_key(key, password=None)
    except TypeError:
        raise ConfigError(
            f"tls.key: {tls.key}: is encrypted; expected one without a password"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"tls.key: {tls.key}: holds no private key in PEM") from None
    try:
        is_own_key = private.public_key() == own.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"tls.cert: {tls.cert}: its key cannot be used: {error}") from None
    if not is_own_key:
        raise ConfigError(f"tls.key: {tls.key}: is not the key of the certificate in {tls.cert}")
    now = now or dt.datetime.now(dt.UTC)
    _check_time(tls.cert, own, now)
    _check_signers(tls.ca, signers, now)
    try:
        names = _names(own)
    except _unreadable_names() as error:
        raise ConfigError(
            f"tls.cert: {tls.cert}: the certificate's names cannot be read: {error}"
        ) from None
    return KeyMaterial(cert, key, ca, names, own.not_valid_after_utc)


_KEYS: Final = ("cert", "key", "ca")


def _read(name: str, file: str) -> bytes:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 - as given
            return opened.read()
    except OSError as error:
        raise ConfigError(f"tls.{name}: {file}: cannot be read: {error.strerror}") from None


def _certificates(file: str, name: str, content: bytes) -> list[Certificate]:
    from cryptography.x509 import InvalidVersion, load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(content)
    except ValueError:
        raise ConfigError(f"tls.{name}: {file}: holds no certificate in PEM") from None
    except InvalidVersion as error:
        raise ConfigError(f"tls.{name}: {file}: the certificate cannot be read: {error}") from None


def _check_time(file: str, own: Certificate, now: dt.datetime) -> None:
    if own.not_valid_after_utc <= now:
        raise ConfigError(f"tls.cert: {file}: the certificate expired at {own.not_valid_after_utc}")
    if own.not_valid_before_utc > now:
        raise ConfigError(
            f"tls.cert: {file}: the certificate is not valid before {own.not_valid_before_utc}"
        )


def _check_signers(file: str, signers: Sequence[Certificate], now: dt.datetime) -> None:
    """Raises ConfigError if all certificates of the CA are expired; logs a warning if some are."""
    ended = [one for one in signers if one.not_valid_after_utc <= now]
    if not ended:
        return
    last = max(one.not_valid_after_utc for one in ended)
    if len(ended) == len(signers):
        raise ConfigError(f"tls.ca: {file}: the certificate expired at {last}")
    _log.warning(
        "tls.ca: %s: %d of its %d certificates are expired: what they signed is refused",
        file,
        len(ended),
        len(signers),
    )


class Certificates:
    """A server's own certificate, as now in its files.

    Replaced files are used from the next handshake on; open streams continue. Errors in the files
    are logged, and the previous certificate stays in use.
    """

    def __init__(self, tls: TlsConfig) -> None:
        """Raises ConfigError: as ``read_material``."""
        self._tls: Final = tls
        self._files: Final = ReloadingValue(
            tls.files, lambda: read_material(tls), failed=_not_taken, every_seconds=0.0
        )
        self._given: int | None = None

    @property
    def material(self) -> KeyMaterial:
        """Certificate in use."""
        return self._files.value()

    @property
    def generation(self) -> int:
        """Number of the certificate in use, counted from 1."""
        self._files.value()
        return self._files.generation

    def server_credentials(self) -> grpc.ServerCredentials:
        """Returns credentials for listening, which check for new files at each handshake (G8)."""
        first = self._files.value()
        self._given = self._files.generation
        return grpc.dynamic_ssl_server_credentials(
            _configuration(first),
            self._fetch,
            require_client_authentication=self._tls.client_auth == "require",
        )

    def _fetch(self) -> Any:  # gRPC's types do not allow None, which means "unchanged"
        # The generation first: files renewed after this line reach the next handshake again.
        # Two handshakes at once may both get the new certificate: that does no harm.
        generation = self.generation
        material = self._files.value()
        if generation == self._given:
            return None
        self._given = generation
        _log.info("the server's certificate was read again; it ends %s", material.expires)
        return _configuration(material)

    def for_calling(self) -> TlsMaterial:
        """Returns the credentials for calling another server with this server's certificate."""
        material, tls = self._files.value(), self._tls
        return TlsMaterial(material.ca, material.key, material.cert, tls.key, tls.cert)


def _not_taken(error: Exception) -> None:
    _log.warning("the new certificate is not taken; the previous one stays in use: %s", error)


def _configuration(material: KeyMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(material.key, material.cert)], material.ca)


@functools.lru_cache(maxsize=4096)
def names_of(pem: bytes) -> CertificateNames:
    """Returns the names in a peer's certificate; cached, since all calls of a connection have the
    same one.

    Raises:
        Unauthenticated: TLS accepted the certificate, but it cannot be parsed here.
    """
    from cryptography.x509 import load_pem_x509_certificate

    try:
        return _names(load_pem_x509_certificate(pem))
    except _unreadable_names():
        raise Unauthenticated("the certificate's names cannot be read") from None


def _unreadable_names() -> tuple[type[Exception], ...]:
    """Returns the errors for names that cannot be read, as with two lists of names, an X.400
    address, or a certificate of version 2.
    """
    from cryptography.x509 import DuplicateExtension, InvalidVersion, UnsupportedGeneralNameType

    return ValueError, DuplicateExtension, InvalidVersion, UnsupportedGeneralNameType


def _names(certificate: Certificate) -> CertificateNames:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    # If there are several common names, the last one is the most specific.
    common_name = str(common[-1].value) if common else ""
    ends_at = certificate.not_valid_after_utc.timestamp()
    try:
        sans = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return CertificateNames(common_name=common_name, ends_at=ends_at)
    return CertificateNames(
        uris=_texts(sans.get_values_for_type(x509.UniformResourceIdentifier)),
        dns=_texts(sans.get_values_for_type(x509.DNSName)),
        emails=_texts(sans.get_values_for_type(x509.RFC822Name)),
        common_name=common_name,
        ends_at=ends_at,
    )


def _texts(values: Sequence[object]) -> tuple[str, ...]:
    return tuple(map(str, values))


_MOST_BYTES: Final = 64 * 1024 * 1024
_RECONNECT_MS: Final = 1_000
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", _MOST_BYTES),
    # One connection per channel: gRPC would share it for more calls than a server accepts.
    ("grpc.use_local_subchannel_pool", 1),
    # A new link uses a channel that other links still use: it must reconnect soon.
    ("grpc.initial_reconnect_backoff_ms", _RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", _RECONNECT_MS),
)
_CHANNELS: Final = SharedChannels()
"""Channels for single messages between servers: mount tables and inherited records."""


class PeerCredentials:
    """Connections of one cluster's server to others; ``resolver.transport.Credentials``.

    With ``[tls]`` both sides have certificates (mTLS between all servers); without it neither has.
    """

    def __init__(self, tls: TlsConfig | None) -> None:
        """Raises ConfigError: a file cannot be used."""
        self._certificates: Final = Certificates(tls) if tls is not None else None
        self._lock: Final = threading.Lock()
        self._made: tuple[int, TlsMaterial | None] = (0, None)

    @property
    def carries_no_rights(self) -> bool:
        """True if a call without a token carries no user's rights: without TLS, or with a cluster's
        certificate.
        """
        found = self._certificates
        return found is None or bool(found.material.names.cluster_ids)

    @property
    def is_secure(self) -> bool:
        """True if other servers are called with TLS."""
        return self._certificates is not None

    def tls(self) -> tuple[int, TlsMaterial | None]:
        found = self._certificates
        if found is None:
            return self._made
        generation = found.generation
        with self._lock:
            if self._made[0] != generation:
                self._made = generation, found.for_calling()
            return self._made

    def metadata(self) -> Metadata:
        return ()

    def channel(self, endpoint: str) -> AbstractContextManager[SharedChannel]:
        """Yields a channel for one call to ``host:port``, which the other server's certificate must
        name; shared with other clusters of this process that have the same certificate.
        """
        material = self.tls()[1]
        target = parse_endpoint(endpoint).target
        if material is None:
            create = functools.partial(grpc.insecure_channel, target, _OPTIONS)
        else:
            create = functools.partial(
                grpc.secure_channel, target, material.channel_credentials(), _OPTIONS
            )
        return _CHANNELS.use((target, material), create)
