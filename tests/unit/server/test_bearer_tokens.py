"""Bearer tokens: what is believed, and what is refused in which words."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from directory.server.authentication import LEEWAY_SECONDS, Tokens
from directory.server.config_security import AuthConfig
from directory.server.toml_table import ConfigError
from resolver.errors import Unauthenticated
from tests.support.federation import eventually
from tests.support.identities import (
    Authority,
    public_pem,
    token,
    with_unknown_curve,
    with_unknown_version,
)

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - refused
CURVE = ec.generate_private_key(ec.SECP256R1())
EDWARDS = ed25519.Ed25519PrivateKey.generate()
SECRET = b"a secret that nobody could guess, 32 bytes and more"
NOW = time.time()


def jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    kinds = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    made: Any = next(one for kind, one in kinds.items() if isinstance(key, kind))
    return {**json.loads(made.to_jwk(key.public_key())), "kid": kid, **more}


def tokens(tmp_path: Path, content: bytes | None = None, **settings: Any) -> Tokens:
    """Returns what verifies by a key file of that content; RSA's by default."""
    file = tmp_path / "key"
    file.write_bytes(public_pem(RSA) if content is None else content)
    return Tokens(AuthConfig(jwt_key=str(file), **settings))


def key_set(tmp_path: Path, *keys: dict[str, Any], **settings: Any) -> Tokens:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": keys}))
    return Tokens(AuthConfig(jwks=str(file), **settings))


def forged(header: dict[str, Any], signature: bytes = b"") -> str:
    """Returns a token made by hand."""
    claims = {"sub": "alice", "exp": int(NOW) + 86_400}
    parts = [json.dumps(one).encode() for one in (header, claims)]
    return ".".join(
        base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in [*parts, signature]
    )


def refusal(verifier: Tokens, text: str) -> str:
    with pytest.raises(Unauthenticated) as refused:
        verifier.principal_of(text)
    assert "alice" not in refused.value.message
    return refused.value.message


@pytest.mark.parametrize(
    ("content", "key", "algorithm"),
    [
        (public_pem(RSA), RSA, "RS256"),
        (public_pem(RSA), RSA, "PS512"),
        (public_pem(CURVE), CURVE, "ES256"),
        (public_pem(EDWARDS), EDWARDS, "EdDSA"),
        (SECRET + b"\n", SECRET, "HS256"),
        (2 * SECRET, 2 * SECRET, "HS512"),
    ],
)
def test_a_good_token_says_who(tmp_path: Path, content: bytes, key: Any, algorithm: str) -> None:
    verifier = tokens(tmp_path, content)
    assert verifier.principal_of(token(key, algorithm)) == "User:alice"


@pytest.mark.parametrize(
    ("claims", "arguments"),
    [
        ({"exp": int(NOW - LEEWAY_SECONDS - 5)}, "has expired"),
        ({"exp": None}, "lacks the claim exp"),
        ({"exp": "tomorrow"}, "exp is no time"),
        ({"nbf": int(NOW + LEEWAY_SECONDS + 86_400)}, "is not valid yet"),
        ({"sub": None}, "the token has no `sub` claim"),
        ({"sub": ""}, "the token has no `sub` claim"),
        ({"sub": "*"}, "is no name of a principal"),
        ({"sub": "ANONYMOUS"}, "is no name of a principal"),
        ({"sub": "a\nb"}, "is no name of a principal"),
        ({"aud": "somebody-else"}, "for another audience"),
    ],
)
def test_a_token_that_is_not_good_now_is_refused(
    tmp_path: Path, claims: dict[str, Any], arguments: str
) -> None:
    assert arguments in refusal(tokens(tmp_path), token(RSA, **claims))


@pytest.mark.parametrize(("claim", "seconds"), [("exp", -5), ("nbf", 10), ("iat", 10)])
def test_clocks_may_be_a_little_apart(tmp_path: Path, claim: str, seconds: int) -> None:
    claims: dict[str, Any] = {claim: int(time.time()) + seconds}
    assert tokens(tmp_path).principal_of(token(RSA, **claims)) == "User:alice"


@pytest.mark.parametrize(
    ("claims", "arguments"),
    [
        ({"iss": "https://login", "aud": "kdir"}, ""),
        ({"iss": "https://login", "aud": ["x", "kdir"]}, ""),
        ({"iss": "https://else", "aud": "kdir"}, "of another issuer"),
        ({"iss": "https://login", "aud": "kafka"}, "for another audience"),
        ({"iss": "https://login"}, "lacks the claim aud"),
        ({"aud": "kdir"}, "lacks the claim iss"),
    ],
)
def test_issuer_and_audience(tmp_path: Path, claims: dict[str, Any], arguments: str) -> None:
    verifier = tokens(tmp_path, issuer="https://login", audience="kdir")
    given = token(RSA, **claims)
    if arguments:
        assert arguments in refusal(verifier, given)
    else:
        assert verifier.principal_of(given) == "User:alice"


def test_another_claim_may_name_the_principal(tmp_path: Path) -> None:
    verifier = tokens(tmp_path, principal_claim="email")
    assert verifier.principal_of(token(RSA, email="al@example.com")) == "User:al@example.com"
    assert "`email`" in refusal(verifier, token(RSA))


def test_the_key_decides_the_algorithm_and_never_the_token(tmp_path: Path) -> None:
    """RFC 8725 §2.1: no ``none``, and no public key taken for a secret."""
    verifier = tokens(tmp_path)
    assert "algorithm" in refusal(verifier, forged({"alg": "none"}))
    assert "algorithm" in refusal(verifier, forged({"alg": "None", "typ": "JWT"}))
    import hashlib
    import hmac

    head = forged({"alg": "HS256", "typ": "JWT"}).rpartition(".")[0]
    signature = hmac.new(public_pem(RSA), head.encode(), hashlib.sha256).digest()
    confused = f"{head}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
    assert "algorithm" in refusal(verifier, confused)
    assert "algorithm" in refusal(tokens(tmp_path, SECRET), token(RSA))
    assert "algorithm" in refusal(tokens(tmp_path, SECRET), token(2 * SECRET, "HS512"))
    assert "algorithm" in refusal(tokens(tmp_path, public_pem(CURVE)), token(RSA))


def test_what_is_not_signed_by_the_key_is_refused(tmp_path: Path) -> None:
    verifier = tokens(tmp_path)
    good = token(RSA)
    assert "signature is not right" in refusal(verifier, token(OTHER))
    head, claims, signature = good.split(".")
    other = token(RSA, sub="mallory").split(".")[1]
    assert "signature is not right" in refusal(verifier, f"{head}.{other}.{signature}")
    assert "signature is not right" in refusal(verifier, f"{head}.{claims}.")
    for text in ("x", "a.b.c", "", good[:-10] + "\0", "é.é.é", "." * 50):
        assert "token" in refusal(verifier, text)
    assert "longer than" in refusal(verifier, good + "x" * 20_000)
    refusal(verifier, token(RSA, headers={"crit": ["x"], "x": 1}))


def test_a_key_set_is_asked_by_key_id(tmp_path: Path) -> None:
    verifier = key_set(tmp_path, jwk(RSA, "one"), jwk(CURVE, "two"), jwk(EDWARDS, "three"))
    for key, algorithm, kid in ((RSA, "RS256", "one"), (CURVE, "ES256", "two")):
        assert verifier.principal_of(token(key, algorithm, {"kid": kid})) == "User:alice"
    assert "names no key" in refusal(verifier, token(RSA, headers={"kid": "four"}))
    assert "does not say which key" in refusal(verifier, token(RSA))
    assert "signature" in refusal(verifier, token(OTHER, headers={"kid": "one"}))
    assert "algorithm" in refusal(verifier, token(RSA, headers={"kid": "two"}))


def test_a_key_set_of_one_needs_no_key_id_and_its_alg_binds(tmp_path: Path) -> None:
    verifier = key_set(tmp_path, jwk(RSA, "one", alg="RS512"), jwk(OTHER, "enc", use="enc"))
    assert verifier.principal_of(token(RSA, "RS512")) == "User:alice"
    assert "algorithm" in refusal(verifier, token(RSA, "RS256"))


def test_a_rotated_key_set_counts_at_once_and_what_left_it_is_refused(tmp_path: Path) -> None:
    verifier = key_set(tmp_path, jwk(RSA, "one"))
    old = token(RSA, headers={"kid": "one"})
    assert verifier.principal_of(old) == "User:alice"
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [jwk(OTHER, "two")]}))
    assert verifier.principal_of(token(OTHER, headers={"kid": "two"})) == "User:alice"
    assert "signature" in refusal(verifier, old) or "names no key" in refusal(verifier, old)


@pytest.mark.parametrize("keys", [[], [{"kty": "x", "kid": "two"}], [{"kty": "oct", "kid": "k"}]])
def test_the_last_key_that_is_taken_out_of_a_set_is_good_no_more(
    tmp_path: Path, keys: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    verifier = key_set(tmp_path, jwk(RSA, "one"))
    old = token(RSA, headers={"kid": "one"})
    assert verifier.principal_of(old) == "User:alice"
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": keys}))

    def answer() -> str:
        try:
            return verifier.principal_of(old)
        except Unauthenticated as error:
            return error.message

    eventually(lambda: "names no key" in answer())
    assert "no token is accepted" in caplog.text
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [jwk(RSA, "one")]}))
    eventually(lambda: answer() == "User:alice")


def test_a_token_that_is_verified_while_its_key_is_taken_out_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = key_set(tmp_path, jwk(RSA, "one"))
    old, new = token(RSA, headers={"kid": "one"}), token(OTHER, headers={"kid": "two"})
    keys = verifier._keys
    before = keys.value()

    class Late:
        """A thread that has read the keys, and is overtaken by another one with the new ones."""

        generation = property(lambda _: keys.generation)

        def value(self, *, look: bool = False) -> Any:
            monkeypatch.setattr(verifier, "_keys", keys)
            (tmp_path / "jwks.json").write_text(json.dumps({"keys": [jwk(OTHER, "two")]}))
            assert verifier.principal_of(new) == "User:alice"
            return before

    monkeypatch.setattr(verifier, "_keys", Late())
    assert verifier.principal_of(old) == "User:alice", "it was good when the call began"
    assert "names no key" in refusal(verifier, old)
    assert verifier.principal_of(new) == "User:alice"


def test_keys_that_cannot_be_read_again_leave_those_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    verifier = key_set(tmp_path, jwk(RSA, "one"))
    (tmp_path / "jwks.json").write_text("{")
    assert "names no key" in refusal(verifier, token(OTHER, headers={"kid": "two"}))
    assert verifier.principal_of(token(RSA, headers={"kid": "one"})) == "User:alice"
    assert caplog.text.count("are not taken") == 1


def test_a_token_that_was_believed_expires_all_the_same(tmp_path: Path) -> None:
    now = [NOW]
    file = tmp_path / "key"
    file.write_bytes(public_pem(RSA))
    verifier = Tokens(AuthConfig(jwt_key=str(file)), clock=lambda: now[0])
    given = token(RSA, exp=int(NOW) + 100)
    assert verifier.principal_of(given) == "User:alice"
    now[0] += 100 + LEEWAY_SECONDS + 1
    assert "has expired" in refusal(verifier, given)


@pytest.mark.parametrize(
    ("content", "arguments"),
    [
        (b"short", "a secret of 5 bytes; expected at least 32"),
        (
            RSA.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            "holds a private key; the public one",
        ),
        (b"-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n", "no public key"),
        (public_pem(WEAK), "1024 bits"),
    ],
)
def test_a_key_file_that_is_none_is_refused_by_name(
    tmp_path: Path, content: bytes, arguments: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        tokens(tmp_path, content)
    assert arguments in str(refused.value)
    assert str(tmp_path / "key") in str(refused.value)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"keys": []}', '{"keys": {}}', '{"keys": [1, {"kty": "x"}]}']
)
def test_a_key_set_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "jwks.json").write_text(content)
    with pytest.raises(ConfigError):
        Tokens(AuthConfig(jwks=str(tmp_path / "jwks.json")))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"kty": "oct", "k": "c3VwZXItc2VjcmV0", "alg": "HS-256"}, "alg 'HS-256'"),
        ({"kty": None, "k": "c3VwZXItc2VjcmV0"}, "kty None"),
        ({"kty": "oct", "k": "c3VwZXI"}, "a secret of 5 bytes; expected at least 32"),
        (jwk(RSA, "odd", alg="RSA-OAEP-256"), "alg 'RSA-OAEP-256'"),
        (jwk(CURVE, "odd", alg="ES384"), "alg 'ES384' is not of"),
    ],
)
def test_a_key_of_a_set_that_is_left_out_is_named_and_not_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, entry: dict[str, Any], why: str
) -> None:
    from directory.server.authentication import read_keys

    good = jwk(CURVE, "good", use=None)
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [good, {**entry, "kid": "odd"}]}))
    assert [key.key_id for key in read_keys(AuthConfig(jwks=str(file)))] == ["good"]
    assert "the key 'odd' is left out" in caplog.text
    assert why in caplog.text
    for part in ("k", "d", "p", "q"):
        assert str(entry.get(part, "c3VwZXI")) not in caplog.text


def test_two_keys_without_a_name_are_refused(tmp_path: Path) -> None:
    keys = [jwk(CURVE, ""), jwk(RSA, "")]
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": keys}))
    with pytest.raises(ConfigError, match="several keys have no `kid`"):
        Tokens(AuthConfig(jwks=str(tmp_path / "jwks.json")))


def test_a_key_of_a_curve_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(with_unknown_curve(public_pem(CURVE)))
    with pytest.raises(ConfigError, match="holds no public key that can be used"):
        Tokens(AuthConfig(jwt_key=str(file)))


def test_a_certificate_of_a_version_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_bytes(with_unknown_version(Authority(tmp_path).server().cert))
    with pytest.raises(ConfigError, match="holds no public key that can be used"):
        Tokens(AuthConfig(jwt_key=str(file)))


def test_only_the_claim_that_counts_must_be_a_text(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(SECRET)
    auth = AuthConfig(jwt_key=str(tmp_path / "key"), principal_claim="email")
    claims = {"email": "low@ex.com", "sub": 123, "jti": 7, "exp": int(time.time()) + 60}
    odd = jwt.api_jws.PyJWS().encode(json.dumps(claims).encode(), SECRET, "HS256")
    assert Tokens(auth).principal_of(odd) == "User:low@ex.com"


def test_no_key_and_no_token_is_shown(tmp_path: Path) -> None:
    from directory.server.authentication import read_keys

    (tmp_path / "key").write_bytes(SECRET)
    keys = read_keys(AuthConfig(jwt_key=str(tmp_path / "key")))
    assert "secret" not in repr(keys)
