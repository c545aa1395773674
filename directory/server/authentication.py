"""Authentication: finds the identity of a caller by its certificate or bearer token; no other
module reads them.

The identity never comes from a field of a message (G7). If a caller has both, the token names the
caller; a certificate that names a cluster is a server's: it identifies the calling cluster and
carries no user's rights.

Bearer tokens are JWT (RFC 7519); no key is fetched, and the error of a refused token reveals as
little as possible. Keys come from a file, which is read again when it changes: a public key or
certificate in PEM, a shared secret, or a JWKS (RFC 7517). The *key*, never the token, decides the
algorithms (RFC 8725 §3.1): a public key is never used as a secret, and ``none`` is never accepted.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from directory.access.principals import ANONYMOUS, check_principal
from directory.server.certificates import Certificates, names_of
from directory.server.config_security import AuthConfig, TlsConfig
from directory.server.principal_mapping import principal_of
from directory.server.toml_table import ConfigError
from resolver.errors import InvalidArgument, Unauthenticated
from resolver.extras import missing_extra
from resolver.file_reload import ReloadingValue
from resolver.transport import BEARER

__all__ = [
    "BEARER",
    "LEEWAY_SECONDS",
    "Authenticator",
    "Connection",
    "Identity",
    "TokenKey",
    "Tokens",
    "bearer_of",
    "identities_of",
    "read_keys",
]

_CLUSTERS_MAY: Final = frozenset({"FederationService/Link"})
"""Methods that a cluster may call by its own identity."""


class Connection(Protocol):
    """Part of gRPC's context of a call that authentication reads."""

    def auth_context(self) -> Mapping[str, Any]: ...

    def invocation_metadata(self) -> Any: ...


class Identity(NamedTuple):
    """Identity of a caller. Its repr holds no token."""

    principal: str
    """``User:alice``; ``User:ANONYMOUS`` for an unidentified caller, if that is allowed."""
    cluster_ids: tuple[str, ...] = ()
    """The clusters that the peer's certificate names."""
    token: str = ""
    """The caller's verified bearer token: only for calls in the caller's name."""

    def __repr__(self) -> str:
        return f"Identity({self.principal!r}, {self.cluster_ids})"


_ANYBODY: Final = Identity(ANONYMOUS)


class Authenticator:
    """Authentication of the callers of a server of this config. Thread-safe.

    Raises:
        ConfigError: a file of keys or certificates cannot be used.
    """

    def __init__(
        self,
        tls: TlsConfig | None,
        auth: AuthConfig,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._auth: Final = auth
        self._clock: Final = clock
        self._asks: Final = tls is not None and tls.client_auth == "require"
        self.certificates: Final = Certificates(tls) if tls is not None else None
        self._tokens: Final = Tokens(auth) if auth.has_tokens else None

    def authenticate(self, connection: Connection, method: str) -> Identity:
        """Returns the identity of a call.

        Raises:
            Unauthenticated: credentials are required and missing, cannot be verified, or have
                expired: a connection may outlive its certificate.
        """
        cluster_ids: tuple[str, ...] = ()
        principal = ""
        if self._asks:
            pems = connection.auth_context().get("x509_pem_cert")
            if pems:
                names = names_of(bytes(pems[0]))
                if names.ends_at <= self._clock():
                    raise Unauthenticated("the certificate has expired; connect with a new one")
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
            return "no rule of auth.principal_mapping_rules matches the certificate"
        if self._asks:
            return "the certificate names no principal, and no token was sent"
        return "no token was sent, and this server requires one"


def identities_of(
    settings: Sequence[tuple[str, TlsConfig | None, AuthConfig]],
) -> Authenticator | None:
    """Returns the authenticator of a listening address, from the settings (cluster, [tls], [auth])
    of its clusters; None = callers cannot be identified.

    Raises:
        ConfigError: the clusters' settings differ; or a file cannot be used.
    """
    first, tls, auth = settings[0]
    for other, *theirs in settings[1:]:
        if theirs != [tls, auth]:
            raise ConfigError(
                f"[tls] and [auth]: clusters {first} and {other} listen at one address, and differ"
            )
    return None if tls is None and not auth.has_tokens else Authenticator(tls, auth)


def bearer_of(metadata: Any) -> str:
    """Returns the bearer token in the metadata; empty = none.

    Raises:
        Unauthenticated: ``Authorization`` is present and not exactly one bearer token.
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


_log = logging.getLogger(__name__)

LEEWAY_SECONDS: Final = 30.0
"""Largest accepted difference between the clocks of signer and verifier."""
_MOST_BYTES: Final = 16_384
_MOST_REMEMBERED: Final = 4096
_LEAST_SECRET_BYTES: Final = 32
_LEAST_RSA_BITS: Final = 2048
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_SECRETS: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Smallest number of bytes of a secret (RFC 7518 §3.2)."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """Key, with the algorithms of the tokens that it verifies. Its repr omits the key."""

    key: Any
    algorithms: tuple[str, ...]
    key_id: str = ""

    def __repr__(self) -> str:
        return f"TokenKey({self.key_id!r}, {self.algorithms})"


@dataclass(frozen=True, slots=True)
class _Verified:
    principal: str
    expires: float


class Tokens:
    """Verifier of tokens by the keys of a file. Thread-safe.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, auth: AuthConfig, clock: Callable[[], float] = time.time) -> None:
        self._auth: Final = auth
        self._clock: Final = clock
        self._keys: Final = ReloadingValue(
            (auth.jwks or auth.jwt_key,),
            lambda: self._read(auth),
            failed=lambda error: _log.warning(
                "the new keys of tokens are not taken, those before stay: %s", error
            ),
        )
        if not self._keys.value():
            raise ConfigError(f"auth.jwks: {auth.jwks}: holds no key that can be used")
        # Calls repeat the same token, and verifying one costs as much as resolving twenty paths.
        # Verified tokens are cached beside the keys that verified them, so that a removed key is
        # refused at once, even if the keys are replaced while a token is verified.
        self._verified: tuple[Sequence[TokenKey], OrderedDict[str, _Verified]] = ((), OrderedDict())

    @staticmethod
    def _read(auth: AuthConfig) -> tuple[TokenKey, ...]:
        keys = read_keys(auth)
        if not keys:
            _log.warning(
                "auth.jwks: %s: holds no key that can be used: no token is accepted", auth.jwks
            )
        return keys

    def principal_of(self, token: str) -> str:
        """Returns the principal of a token.

        Raises:
            Unauthenticated: it cannot be verified; has a short reason, and none of its content.
        """
        keys = self._keys.value()
        by, verified = self._verified
        if by is not keys:
            verified = OrderedDict()
            self._verified = keys, verified
        known = verified.get(token)
        if known is None:
            known = self._verify(token, keys)
            verified[token] = known
            while len(verified) > _MOST_REMEMBERED:
                verified.popitem(last=False)
        if known.expires + LEEWAY_SECONDS <= self._clock():
            verified.pop(token, None)
            raise Unauthenticated("the token has expired")
        return known.principal

    def _verify(self, token: str, keys: Sequence[TokenKey]) -> _Verified:
        import jwt

        if len(token) > _MOST_BYTES:
            raise Unauthenticated(f"the token is longer than {_MOST_BYTES} bytes")
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise Unauthenticated("the token is no JWT") from None
        if header.get("crit") is not None:
            raise Unauthenticated("the token asks for extensions that are not known here")
        key = self._key_for(header, keys)
        try:
            # The times are compared below, by our own clock.
            claims = jwt.decode(
                token,
                key.key,
                algorithms=list(key.algorithms),
                audience=self._auth.audience or None,
                issuer=self._auth.issuer or None,
                options={
                    "require": self._required(),
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    # Not used, unless `principal_claim` is one of them, which is checked below.
                    "verify_sub": False,
                    "verify_jti": False,
                },
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated(_why(error)) from None
        return self._checked(claims)

    def _required(self) -> list[str]:
        wanted = {"iss": self._auth.issuer, "aud": self._auth.audience}
        return ["exp", *(claim for claim, value in wanted.items() if value)]

    def _key_for(self, header: Mapping[str, Any], keys: Sequence[TokenKey]) -> TokenKey:
        key_id = header.get("kid")
        if self._auth.jwks and key_id is not None:
            found = [key for key in keys if key.key_id == key_id]
            if not found:
                # Perhaps the file was replaced a moment ago.
                found = [key for key in self._keys.value(look=True) if key.key_id == key_id]
            keys = found
        if len(keys) != 1:
            raise Unauthenticated(
                "the token names no key that is known here"
                if key_id is not None
                else "the token does not say which key it is signed with"
            )
        if header.get("alg") not in keys[0].algorithms:
            raise Unauthenticated("the token is not signed by an algorithm of its key")
        return keys[0]

    def _checked(self, claims: Mapping[str, Any]) -> _Verified:
        now = self._clock()
        expires, begins = _seconds(claims, "exp"), _seconds(claims, "nbf")
        if expires is None:
            raise Unauthenticated("the token has no expiry (exp)")
        if expires + LEEWAY_SECONDS <= now:
            raise Unauthenticated("the token has expired")
        if begins is not None and begins - LEEWAY_SECONDS > now:
            raise Unauthenticated("the token is not valid yet")
        claim = self._auth.principal_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name:
            raise Unauthenticated(f"the token has no `{claim}` claim")
        try:
            principal = check_principal(f"User:{name}")
        except InvalidArgument:
            principal = "User:*"
        if principal in {"User:*", "User:ANONYMOUS"}:
            raise Unauthenticated(f"the token's {claim} is no name of a principal")
        return _Verified(principal, expires)


def _seconds(claims: Mapping[str, Any], claim: str) -> float | None:
    value = claims.get(claim)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**53:
        raise Unauthenticated(f"the token's {claim} is no time")
    return float(value)


def _why(error: Exception) -> str:
    import jwt

    match error:
        case jwt.InvalidAudienceError():
            return "the token is for another audience"
        case jwt.InvalidIssuerError():
            return "the token is of another issuer"
        case jwt.MissingRequiredClaimError():
            return f"the token lacks the claim {error.claim}"
        case jwt.InvalidAlgorithmError():
            return "the token is not signed by an algorithm of its key"
        case jwt.InvalidSignatureError():
            return "the token's signature is not right"
        case _:
            return "the token is no JWT that could be verified"


def read_keys(auth: AuthConfig) -> tuple[TokenKey, ...]:
    """Returns the keys of the file in ``[auth]``. From a JWKS, only those that can verify tokens;
    there may be none, since a JWKS revokes all keys that it lacks.

    Raises:
        ConfigError: the file is missing, or neither a key nor a set of keys.
    """
    if missing := missing_extra("[auth] with a key of tokens", "identity"):
        raise ConfigError(missing)
    name, file = ("jwks", auth.jwks) if auth.jwks else ("jwt_key", auth.jwt_key)
    try:
        with open(file, "rb") as opened:  # noqa: PTH123 - as given
            content = opened.read()
    except OSError as error:
        raise ConfigError(f"auth.{name}: {file}: cannot be read: {error.strerror}") from None
    where = f"auth.{name}: {file}"
    return _key_set(content, where) if auth.jwks else (_one_key(content, where),)


def _one_key(content: bytes, where: str) -> TokenKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from cryptography.x509 import InvalidVersion, load_pem_x509_certificate

    if b"PRIVATE KEY-----" in content:
        raise ConfigError(f"{where}: holds a private key; the public one is enough, and right")
    if b"-----BEGIN" not in content:
        secret = content.strip()
        if len(secret) < _LEAST_SECRET_BYTES:
            raise ConfigError(
                f"{where}: a secret of {len(secret)} bytes; expected at least "
                f"{_LEAST_SECRET_BYTES}, "
                f"or a public key in PEM"
            )
        return TokenKey(secret, _of_secret(secret))
    try:
        key: Any = (
            load_pem_x509_certificate(content).public_key()
            if b"BEGIN CERTIFICATE" in content
            else load_pem_public_key(content)
        )
        return TokenKey(key, _algorithms(key))
    except (ValueError, InvalidVersion, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{where}: holds no public key that can be used: {error}") from None


def _key_set(content: bytes, where: str) -> tuple[TokenKey, ...]:
    try:
        entries = json.loads(content)["keys"]
        if not isinstance(entries, list):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f'{where}: is no JWKS; expected {{"keys": […]}}') from None
    keys = []
    for entry in entries:
        if not isinstance(entry, dict) or (entry.get("use") or "sig") != "sig":
            continue
        try:
            keys.append(_entry_key(entry))
        except ValueError as error:
            _log.warning("%s: the key %r is left out: %s", where, entry.get("kid"), error)
    ids = [key.key_id for key in keys]
    twice = next((one for one in ids if ids.count(one) > 1), None)
    if twice == "":
        raise ConfigError(f"{where}: several keys have no `kid`: tokens could not name theirs")
    if twice is not None:
        raise ConfigError(f"{where}: several keys are called {twice!r}")
    return tuple(keys)


def _entry_key(entry: dict[str, Any]) -> TokenKey:
    """Returns a key of a JWKS.

    Raises:
        ValueError: it verifies no tokens; has the reason, and nothing of the key.
    """
    import jwt
    from cryptography.exceptions import UnsupportedAlgorithm

    kind, named = entry.get("kty"), entry.get("alg")
    try:
        key = jwt.PyJWK(entry).key
        # Only the public part of a private key is kept.
        key = key.public_key() if hasattr(key, "public_key") else key
    except (jwt.PyJWTError, ValueError, KeyError, TypeError, UnsupportedAlgorithm):
        # The error's own text may hold the key.
        what = ", ".join(f"{name} {entry.get(name)!r}" for name in ("kty", "crv", "alg"))
        raise ValueError(f"it is no key that can be used ({what})") from None
    if isinstance(key, bytes):
        allowed = _of_secret(key)
        if not allowed:
            raise ValueError(
                f"a secret of {len(key)} bytes; expected at least {_LEAST_SECRET_BYTES}"
            )
    else:
        allowed = _algorithms(key)
    if named is None:
        return TokenKey(key, allowed, str(entry.get("kid", "")))
    if named not in allowed:
        raise ValueError(f"alg {named!r} is not of a key of kind {kind!r}: {', '.join(allowed)}")
    return TokenKey(key, (named,), str(entry.get("kid", "")))


def _of_secret(secret: bytes) -> tuple[str, ...]:
    return tuple(name for name, least in _SECRETS.items() if len(secret) >= least)


def _algorithms(key: Any) -> tuple[str, ...]:
    """Returns the algorithms of a public key's tokens (RFC 7518 §3.1, RFC 8037).

    Raises:
        ValueError: keys of its kind sign no tokens, or it is too weak.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

    match key:
        case rsa.RSAPublicKey():
            if key.key_size < _LEAST_RSA_BITS:
                raise ValueError(f"an RSA key of {key.key_size} bits; {_LEAST_RSA_BITS} are least")
            return _RSA
        case ec.EllipticCurvePublicKey() if key.curve.name in _CURVES:
            return (_CURVES[key.curve.name],)
        case ed25519.Ed25519PublicKey() | ed448.Ed448PublicKey():
            return ("EdDSA",)
        case _:
            raise ValueError("a kind of key that signs no tokens")
