"""Tables ``[tls]`` and ``[auth]`` of a server's config; the files that they name are not read."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from directory.access.principals import EVERYBODY, check_principal
from directory.server.principal_mapping import DEFAULT, PrincipalRule, parse_rules
from directory.server.toml_table import ConfigError, Table
from resolver.errors import InvalidArgument

__all__ = ["AuthConfig", "TlsConfig", "auth_of", "check_means", "parse_super_users", "tls_of"]

_CLIENT: Final = ("require", "none")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Certificate of a server, and the CA that it trusts. Files are PEM."""

    cert: str
    """Certificate, followed by the intermediate ones."""
    key: str
    ca: str
    """CA of trusted certificates, of clients and of other servers."""
    client_auth: str = "require"
    """``require``: client certificate of ``ca`` required; ``none``: not requested."""

    @property
    def files(self) -> tuple[str, str, str]:
        return self.cert, self.key, self.ca


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Settings of the authentication of callers."""

    principal_mapping_rules: tuple[PrincipalRule, ...] = (DEFAULT,)
    jwt_key: str = ""
    jwks: str = ""
    issuer: str = ""
    audience: str = ""
    principal_claim: str = "sub"
    allow_anonymous: bool = True
    """Allows calls without certificate or token, as User:ANONYMOUS."""
    super_users: frozenset[str] = frozenset()

    @property
    def has_tokens(self) -> bool:
        """True if tokens can be verified."""
        return bool(self.jwt_key or self.jwks)


def tls_of(table: Table | None, base: pathlib.Path | None) -> TlsConfig | None:
    """Reads ``[tls]``; relative files are below ``base``.

    Raises:
        ConfigError: names the key.
    """
    if table is None:
        return None
    files = {
        "cert": table.text("cert", ""),
        "key": table.text("key", ""),
        "ca": table.text("ca", ""),
    }
    for key, name in files.items():
        if not name:
            raise ConfigError(f"{table.where(key)}: missing; expected a PEM file")
        files[key] = _below(name, base)
    client_auth = table.text("client_auth", "require")
    if client_auth == "optional":
        raise ConfigError(
            "tls.client_auth: found 'optional', which gRPC's server for Python cannot do; expected "
            "'require', with tokens for callers whose certificate names no principal, or 'none'"
        )
    if client_auth not in _CLIENT:
        table.fail("client_auth", client_auth, "expected require or none")
    table.done()
    return TlsConfig(files["cert"], files["key"], files["ca"], client_auth)


def auth_of(table: Table | None, tls: TlsConfig | None, base: pathlib.Path | None) -> AuthConfig:
    """Reads ``[auth]``.

    Raises:
        ConfigError: names the key; also raised if no caller could ever be admitted.
    """
    if table is None:
        auth = AuthConfig(allow_anonymous=tls is None)
    else:
        allow_anonymous = table.pop("allow_anonymous", False)
        if not isinstance(allow_anonymous, bool):
            table.fail("allow_anonymous", allow_anonymous, "expected true or false")
        try:
            super_users = parse_super_users(table.texts("super_users"))
        except InvalidArgument as error:
            raise ConfigError(f"auth.super_users: {error.message}") from None
        auth = AuthConfig(
            principal_mapping_rules=parse_rules(_rules(table)),
            jwt_key=_below(table.text("jwt_key", ""), base),
            jwks=_below(table.text("jwks", ""), base),
            issuer=table.text("issuer", ""),
            audience=table.text("audience", ""),
            principal_claim=table.text("principal_claim", "sub"),
            allow_anonymous=allow_anonymous,
            super_users=super_users,
        )
        table.done()
    check_means(tls, auth)
    return auth


def parse_super_users(message: str | Iterable[str]) -> frozenset[str]:
    """Returns the super users of a setting: a list, or Kafka's ``User:a;User:b``, where blanks and
    empty parts are ignored.

    Raises:
        InvalidArgument: a name is malformed, or is ``User:*``.
    """
    parts = message.split(";") if isinstance(message, str) else message
    found = frozenset(check_principal(part.strip()) for part in parts if part.strip())
    if EVERYBODY in found:
        raise InvalidArgument(
            f"super users: {EVERYBODY} would make everybody one; name them one by one",
            field="super_users",
        )
    return found


def check_means(tls: TlsConfig | None, auth: AuthConfig) -> None:
    """Checks both tables together.

    Raises:
        ConfigError: they contradict each other.
    """
    if auth.jwt_key and auth.jwks:
        raise ConfigError("auth: jwt_key or jwks, not both")
    if not auth.has_tokens and (auth.issuer or auth.audience):
        raise ConfigError("auth.issuer and auth.audience need tokens: jwt_key or jwks is missing")
    asked = tls is not None and tls.client_auth == "require"
    if not (auth.allow_anonymous or auth.has_tokens or asked):
        raise ConfigError(
            "auth.allow_anonymous: false, and callers have no other way to authenticate; expected "
            '[tls] client_auth = "require", auth.jwt_key, auth.jwks, or allow_anonymous = true'
        )


def _rules(table: Table) -> tuple[str, ...]:
    value = table.pop("principal_mapping_rules", [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        table.fail("principal_mapping_rules", value, "expected a list of texts")
    return tuple(value)


def _below(name: str, base: pathlib.Path | None) -> str:
    return os.fspath(((base or pathlib.Path.cwd()) / name).absolute()) if name else ""
