"""Who calls: the one place that looks at certificates and tokens; refuses to decide what they may.

Never from a field of a message (G7). With a certificate and a token, the token says
who; a certificate that names a cluster is a server's: it says which cluster calls and carries no
user's rights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from directory.access.principals import ANONYMOUS
from directory.server.bearer_tokens import Tokens
from directory.server.certificates import Certificates, names_of
from directory.server.config_security import AuthConfig, TlsConfig
from directory.server.principal_mapping import principal_of
from directory.server.toml_table import ConfigError
from resolver.errors import Unauthenticated
from resolver.transport import BEARER

__all__ = ["BEARER", "Authenticator", "Connection", "Identity", "bearer_of", "identities_of"]

_CLUSTERS_MAY: Final = frozenset({"FederationService/Link"})
"""What a cluster may call that is nobody's right but its own."""


class Connection(Protocol):
    """Part of gRPC's context of a call that authentication reads."""

    def auth_context(self) -> Mapping[str, Any]: ...

    def invocation_metadata(self) -> Any: ...


class Identity(NamedTuple):
    """Identity of a caller. Its repr holds no token."""

    principal: str
    """``User:alice``; ``User:ANONYMOUS`` where it was not said and need not be."""
    cluster_ids: tuple[str, ...] = ()
    """The clusters that the peer's certificate names."""
    token: str = ""
    """The caller's bearer token, verified: for calls in its name, and for nothing else."""

    def __repr__(self) -> str:
        return f"Identity({self.principal!r}, {self.cluster_ids})"


_ANYBODY: Final = Identity(ANONYMOUS)


class Authenticator:
    """Authentication of the callers of a server of this config. Thread-safe.

    Raises:
        ConfigError: a file of keys or certificates cannot be used.
    """

    def __init__(self, tls: TlsConfig | None, auth: AuthConfig) -> None:
        self._auth: Final = auth
        self._asks: Final = tls is not None and tls.client_auth == "require"
        self.certificates: Final = Certificates(tls) if tls is not None else None
        self._tokens: Final = Tokens(auth) if auth.has_tokens else None

    def authenticate(self, connection: Connection, method: str) -> Identity:
        """Returns who makes a call.

        Raises:
            Unauthenticated: it must be said and is not, or what was said cannot be believed.
        """
        cluster_ids: tuple[str, ...] = ()
        principal = ""
        if self._asks:
            pems = connection.auth_context().get("x509_pem_cert")
            if pems:
                names = names_of(bytes(pems[0]))
                cluster_ids = names.cluster_ids
                principal = principal_of(names, self._auth.principal_mapping_rules)
        token = bearer_of(connection.invocation_metadata())
        if token:
            if self._tokens is None:
                raise Unauthenticated(
                    "this server takes no tokens: it has no [auth] jwt_key or jwks"
                )
            return Identity(self._tokens.principal_of(token), cluster_ids, token)
        if principal:
            return Identity(principal)
        if cluster_ids and method in _CLUSTERS_MAY:
            return Identity(f"Cluster:{cluster_ids[0]}", cluster_ids)
        if self._auth.allow_anonymous:
            return Identity(ANONYMOUS, cluster_ids) if cluster_ids else _ANYBODY
        raise Unauthenticated(self._unsaid(cluster_ids))

    def _unsaid(self, cluster_ids: tuple[str, ...]) -> str:
        if cluster_ids:
            return "the certificate is a cluster's, which carries no user's rights"
        if self._asks and self._tokens is None:
            return "no rule of auth.principal_mapping_rules says whose the certificate is"
        if self._asks:
            return "the certificate names nobody, and no token was sent"
        return "no token was sent, and this server must know who calls"


def identities_of(
    settings: Sequence[tuple[str, TlsConfig | None, AuthConfig]],
) -> Authenticator | None:
    """Returns those of one listening address, of the (cluster, [tls], [auth]) behind it; None where
    nobody could be told from anybody else.

    Raises:
        ConfigError: they are not all the same; or a file cannot be used.
    """
    first, tls, auth = settings[0]
    for other, *theirs in settings[1:]:
        if theirs != [tls, auth]:
            raise ConfigError(
                f"[tls] and [auth]: clusters {first} and {other} listen at one address, and differ"
            )
    return None if tls is None and not auth.has_tokens else Authenticator(tls, auth)


def bearer_of(metadata: Any) -> str:
    """Returns the token among what a caller sent; empty = none.

    Raises:
        Unauthenticated: there is something, but no one bearer token.
    """
    found: str | None = None
    for key, value in metadata or ():
        if key == BEARER:
            if found is not None:
                raise _no_one_token()
            found = str(value)
    if found is None:
        return ""
    scheme, _, token = found.partition(" ")
    token = token.strip()
    if (scheme != "Bearer" and scheme.lower() != "bearer") or not token:
        raise _no_one_token()
    return token


def _no_one_token() -> Unauthenticated:
    return Unauthenticated("authorization: expected one 'Bearer TOKEN'")
