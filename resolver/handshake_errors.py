"""Error messages for failed TLS handshakes: on a connection of gRPC, or on the one over which a
server's certificate is read before a token is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from resolver.errors import HandshakeFailed, KdirError, Unreachable

if TYPE_CHECKING:
    import ssl

__all__ = ["CLOSED", "unreachable_error", "why_not_trusted"]

CLOSED: Final = "does it not take the certificate of this side, or want one?"
"""A peer that refuses a handshake sends no reason, and closes the connection."""
_EXPIRED: Final = "its certificate has expired"
_NOT_YET: Final = "its certificate is not valid yet"
_OTHER_NAME: Final = "its certificate is not for the name that was dialled"
_NO_CA: Final = "its certificate is of no CA that is trusted here"
_BY_GRPC: Final[Mapping[str, str]] = {
    "Hostname Verification Check failed": _OTHER_NAME,
    "certificate has expired": _EXPIRED,
    "certificate is not yet valid": _NOT_YET,
    "certificate signature failure": _NO_CA,
    "CERTIFICATE_VERIFY_FAILED": _NO_CA,
    "WRONG_VERSION_NUMBER": "it does not use TLS",
    "ALERT_CERTIFICATE_EXPIRED": "it says that the certificate of this side has expired",
    "ALERT_UNKNOWN_CA": "it does not know the CA of this side's certificate",
    "CERTIFICATE_REQUIRED": "it wants a client certificate",
}
"""Reasons by a part of gRPC's text; the first part that the text contains counts."""
_BY_OPENSSL: Final = {
    9: _NOT_YET,
    10: _EXPIRED,
    # The chain does not end at a certificate of the CA's file; 7: at one with the same name.
    **dict.fromkeys((7, 18, 19, 20, 21), _NO_CA),
    **dict.fromkeys((62, 64), _OTHER_NAME),  # host name, IP address
}
"""Reasons by OpenSSL's code (``X509_V_ERR_…``)."""


def unreachable_error(text: str, facts: dict[str, str], *, secure: bool | None) -> KdirError:
    """Returns the error of an unreachable server, or of a failed handshake if gRPC's text reports
    one. ``secure``: whether this side uses TLS; None = not known, or the text is the server's own.
    """
    peer = re.match(r"(?:ipv4|ipv6|unix|dns):[^ ]*?(?=: )", text)
    where = f"{peer[0]}: " if peer else ""
    for sign, message in _BY_GRPC.items():
        if sign in text:
            return HandshakeFailed(f"{where}{message}", metadata=facts)
    if "handshake failed" in text or "Custom verification check failed" in text:
        return HandshakeFailed(text, metadata=facts)
    if secure is not None and text.endswith(("Socket closed", "Connection reset by peer")):
        # A connection was made, and closed without an answer.
        if secure:
            return HandshakeFailed(f"{text}; {CLOSED}", metadata=facts)
        text += "; does it want TLS? there is none on this side"
    return Unreachable(text, metadata=facts)


def why_not_trusted(error: ssl.SSLCertVerificationError) -> str:
    """Returns the reason why a server's certificate is rejected."""
    other = f"its certificate is not trusted: {error.verify_message}"
    return _BY_OPENSSL.get(error.verify_code, other)
