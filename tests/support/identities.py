"""Certificates and tokens for tests, made on the spot: a CA, what it signs, and the files of it."""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "Issued", "public_pem", "token"]

DAY = dt.timedelta(days=1)


class Issued:
    """A certificate with its key, as PEM and as files."""

    def __init__(self, directory: Path, name: str, cert: bytes, key: bytes, ca: bytes) -> None:
        self.cert, self.key, self.ca = cert, key, ca
        self.files = {part: directory / f"{name}.{part}" for part in ("cert", "key", "ca")}
        self.write()

    def write(self) -> None:
        """Writes the three files, each in one step: readers never see half of one."""
        for part, file in self.files.items():
            temporary = file.with_suffix(".new")
            temporary.write_bytes(getattr(self, part))
            temporary.replace(file)

    def take(self, other: Issued) -> None:
        """Rotates to another certificate in the same files. The key is written first, so that for a
        moment it does not match the certificate.
        """
        self.cert, self.key, self.ca = other.cert, other.key, other.ca
        self.write()

    def tls(self, **settings: Any) -> dict[str, Any]:
        """Returns the [tls] table of a server's config with this certificate."""
        return {**{part: str(file) for part, file in self.files.items()}, **settings}

    def channel(self, address: str) -> grpc.Channel:
        """Opens a channel with this certificate."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        return grpc.secure_channel(address, self.credentials(), options)

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials of a channel with this certificate."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


class Authority:
    """A CA that lasts for a test."""

    def __init__(self, directory: Path, name: str = "ca", ends: dt.timedelta = 30 * DAY) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        self._cert = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + ends)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = self._cert.public_bytes(serialization.Encoding.PEM)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self.pem)
        self._count = 0

    def issue(
        self,
        common_name: str = "",
        *,
        uris: Sequence[str] = (),
        dns: Sequence[str] = (),
        addresses: Sequence[str] = (),
        begins: dt.timedelta = -DAY,
        ends: dt.timedelta = DAY,
        extension: x509.ExtensionType | None = None,
    ) -> Issued:
        """Issues a certificate of these names; with ``extension`` of those in it instead."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.UTC)
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name(subject))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
        )
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        names += [x509.DNSName(one) for one in dns]
        names += [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        if extension is not None:
            builder = builder.add_extension(extension, critical=False)
        elif names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        self._count += 1
        return Issued(
            self.directory,
            f"{self._count}",
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            self.pem,
        )

    def server(self, cluster_id: str = "", **settings: Any) -> Issued:
        """Issues a certificate of a server on the loopback address, of a cluster where one is
        named.
        """
        uris = [f"kdir://cluster/{cluster_id}"] if cluster_id else []
        return self.issue("server", uris=uris, addresses=["127.0.0.1"], **settings)


def with_unknown_curve(pem: bytes) -> bytes:
    """Returns a certificate or public key of P-256 as one of SM2's curve, which Python's
    cryptography does not know.
    """
    return _replaced(pem, "2a8648ce3d030107", "2a811ccf5501822d")


def with_unknown_version(pem: bytes) -> bytes:
    """Returns a certificate of version 3 as one of version 2, which Python's cryptography does not
    read.
    """
    return _replaced(pem, "a003020102", "a003020101")


def _replaced(pem: bytes, known: str, unknown: str) -> bytes:
    begin, *lines, end = pem.decode().strip().splitlines()
    content = base64.b64decode("".join(lines))
    content = content.replace(bytes.fromhex(known), bytes.fromhex(unknown), 1)
    return f"{begin}\n{base64.b64encode(content).decode()}\n{end}\n".encode()


def public_pem(key: Any) -> bytes:
    """Returns the public key, as a server that checks tokens reads it."""
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    pem: bytes = key.public_key().public_bytes(encoding, form)
    return pem


def token(
    key: Any, algorithm: str = "RS256", headers: Mapping[str, Any] | None = None, **claims: Any
) -> str:
    """Returns a JWT that is valid for a minute, unless the claims set another time; None leaves a
    claim out.
    """
    import jwt

    now = int(time.time())
    whole = {"sub": "alice", "exp": now + 60, **claims}
    return jwt.encode(
        {name: value for name, value in whole.items() if value is not None},
        key,
        algorithm=algorithm,
        headers=dict(headers or {}),
    )
