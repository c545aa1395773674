"""Takes a listening address for a gRPC server, with TLS where there are certificates."""

from __future__ import annotations

import grpc

from directory.server.authentication import Authenticator
from directory.server.toml_table import ConfigError

__all__ = ["bind_listener"]


def bind_listener(server: grpc.Server, listen: str, identities: Authenticator | None) -> int:
    """Has a server listen at ``host:port``; gives the port, which is another one for port 0.

    Raises:
        ConfigError: the address cannot be had.
    """
    certificates = identities.certificates if identities is not None else None
    try:
        if certificates is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, certificates.server_credentials())
    except RuntimeError:
        port = 0
    if not port:
        raise ConfigError(f"listen: cannot bind {listen}; is the port in use by another server?")
    return int(port)
