"""A user's credentials: certificates and tokens, read from files and reloaded when the files
change.

TLS is used if there is a ``ca``: a certificate of this CA is trusted only for the name or address
that was dialled. The transport decides which servers receive a token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Final

from resolver.errors import InvalidArgument
from resolver.file_reload import ReloadingValue
from resolver.peer_certificates import TlsMaterial
from resolver.transport import BEARER, Metadata
from resolver.user_config import LoginSettings, unreadable_file_error

__all__ = ["UserCredentials"]


class UserCredentials:
    """Credentials of a user, for ``resolver.transport.Credentials``. Files are read again when they
    change.
    """

    def __init__(self, login: LoginSettings) -> None:
        """Reads the files.

        Raises:
            InvalidArgument: a file cannot be used; names it and the expected contents.
            Unavailable: a file cannot be read now.
        """
        if bool(login.cert) != bool(login.key):
            raise InvalidArgument("cert and key go together", field="cert")
        if login.cert and not login.ca:
            raise InvalidArgument("ca: missing; expected with cert, to trust servers", field="ca")
        if login.token and login.token_file:
            raise InvalidArgument("token or token_file, not both", field="token")
        self._login: Final = login
        files = [file for file in (login.ca, login.cert, login.key) if file]
        self._tls: Final = ReloadingValue(files, self._read_tls) if login.ca else None
        self._token: Final = (
            ReloadingValue([login.token_file], self._read_token) if login.token_file else None
        )
        if login.token:
            _header(login.token, "token")

    @property
    def fingerprint(self) -> str:
        """Key of the user for cached answers, by the certificate and token as they are now; a
        renewed one of the same names has the same. Reveals no secret.
        """
        if not any(self._login):
            return ""
        cert = self._tls.value().cert if self._tls is not None else None
        tokens = [text for _, text in self.metadata()]
        names = [_certificate_names(cert or b""), *(_token_names(str(text)) for text in tokens)]
        return hashlib.sha256(repr(names).encode()).hexdigest()[:16]

    def tls(self) -> tuple[int, TlsMaterial | None]:
        if self._tls is None:
            return 0, None
        # The generation first: what another thread renews after that is of a later one.
        generation = self._tls.generation
        return generation, self._tls.value()

    def metadata(self) -> Metadata:
        header = self._token.value() if self._token is not None else ""
        if self._login.token:
            header = _header(self._login.token, "token")
        return ((BEARER, header),) if header else ()

    def _read_tls(self) -> TlsMaterial:
        login = self._login
        ca, cert, key = (_read(file, what) for file, what in zip(login[:3], _WHAT, strict=True))
        _check(login)
        return TlsMaterial(ca or b"", key, cert, login.key, login.cert)

    def _read_token(self) -> str:
        file = self._login.token_file
        content = _read(file, "token_file") or b""
        if pathlib.Path(file).stat().st_mode & 0o006:
            raise InvalidArgument(
                f"token_file: everybody on this machine may read or write it: chmod 600 {file}",
                field="token_file",
            )
        return _header(content.decode("ascii", "replace").strip(), f"token_file: {file}")


_WHAT: Final = ("ca", "cert", "key")
_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_END: Final = b"-----END CERTIFICATE-----"
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
"""Tags of a certificate's version and extensions, which it may lack (RFC 5280, section 4.1)."""
_ALTERNATIVE_NAMES: Final = bytes.fromhex("0603551d11")
"""OID of the extension with a subject's further names."""
_RENEWED_CLAIMS: Final = frozenset({"exp", "iat", "nbf", "jti"})
"""Claims that each renewal of a JWT changes (RFC 7519)."""


def _certificate_names(pem: bytes) -> object:
    """Returns issuer, subject and further names of a file's first certificate, to be compared; the
    file's contents if they cannot be read.
    """
    found = pem[pem.find(_BEGIN) + len(_BEGIN) : max(pem.find(_END), 0)]
    try:
        ((_, certificate),) = _der_values(base64.b64decode(found))
        signed, *_ = _der_values(certificate)
        fields = list(_der_values(signed[1]))
        if fields[0][0] == _VERSION:
            del fields[0]
        _, _, (_, issuer), _, (_, subject), *rest = fields
        named = [
            one
            for tag, extensions in rest
            if tag == _EXTENSIONS
            for _, listed in _der_values(extensions)
            for _, one in _der_values(listed)
            if one.startswith(_ALTERNATIVE_NAMES)
        ]
    except (ValueError, IndexError):
        return pem
    return issuer, subject, named


def _der_values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields tag and contents of each value of a DER encoding (X.690)."""
    while data:
        tag, size, start = data[0], data[1], 2
        if size & 0x80:
            start += size & 0x7F
            size = int.from_bytes(data[2:start], "big")
        yield tag, data[start : start + size]
        data = data[start + size :]


def _token_names(header: str) -> object:
    """Returns the claims of a JWT (RFC 7519) that a renewal keeps; another token itself. A server
    may take the caller's name from any claim (``auth.principal_claim``).
    """
    try:
        _, payload, _ = header.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        names = sorted(claims.keys() - _RENEWED_CLAIMS)
        return [(name, json.dumps(claims[name], sort_keys=True)) for name in names] or header
    except (ValueError, AttributeError, RecursionError):
        return header


def _header(token: str, where: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument(
            f"{where}: holds no token: expected one text without blanks", field="token"
        )
    return f"Bearer {token}"


def _read(file: str, what: str) -> bytes | None:
    if not file:
        return None
    try:
        return pathlib.Path(file).read_bytes()
    except OSError as error:
        raise unreadable_file_error(error, file, what) from None


def _check(login: LoginSettings) -> None:
    """Checks the certificate files: gRPC would report a fault in them only as a failed
    handshake.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(login.ca)
    except ssl.SSLError:
        raise InvalidArgument(f"ca: {login.ca}: holds no certificate in PEM", field="ca") from None
    if not login.cert:
        return
    try:
        context.load_cert_chain(login.cert, login.key, password="")
    except ssl.SSLError as error:
        why = (
            "is not the key of the certificate"
            if error.reason == "KEY_VALUES_MISMATCH"
            else "the two cannot be read; expected PEM without a password"
        )
        message = f"key: {login.key}: {why} (cert: {login.cert})"
        raise InvalidArgument(message, field="key") from None
