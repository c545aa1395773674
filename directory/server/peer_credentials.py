"""How a server calls other servers: with its own certificate, and none of its callers' rights."""

from __future__ import annotations

import threading
from typing import Final

import grpc

from directory.server.certificates import Certificates
from directory.server.config_security import TlsConfig
from resolver.host_port import parse_endpoint
from resolver.peer_certificates import TlsMaterial
from resolver.transport import Metadata

__all__ = ["PeerCredentials"]


_MOST_BYTES: Final = 64 * 1024 * 1024
"""Of one message of a server to another: mount tables, and what is handed down."""


class PeerCredentials:
    """The connections of one cluster's servers to others; ``resolver.transport.Credentials``.

    Without ``[tls]`` there is none, for the others neither (mTLS between all parts).
    """

    def __init__(self, tls: TlsConfig | None) -> None:
        """Raises ConfigError: a file cannot be used."""
        self._certificates: Final = Certificates(tls) if tls is not None else None
        self._lock: Final = threading.Lock()
        self._made: tuple[int, TlsMaterial | None] = (0, None)

    @property
    def carries_no_rights(self) -> bool:
        """Whether a call without a token carries nobody's rights: what is dialled without TLS, or
        with a certificate that is a cluster's and so no user's.
        """
        found = self._certificates
        return found is None or bool(found.material.names.cluster_ids)

    @property
    def is_secure(self) -> bool:
        """Whether others are called with TLS."""
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

    def channel(self, endpoint: str) -> grpc.Channel:
        """A connection to ``host:port``, which the other's certificate must name."""
        material = self.tls()[1]
        options = (("grpc.max_receive_message_length", _MOST_BYTES),)
        target = parse_endpoint(endpoint).target
        if material is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, material.channel_credentials(), options)
