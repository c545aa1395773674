"""Who calls, as one place finds out: certificate, token, both, neither."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from directory.api.rpc.call_context import Call
from directory.server.authentication import Authenticator, Identity, bearer_of, identities_of
from directory.server.config_security import AuthConfig, TlsConfig
from directory.server.toml_table import ConfigError
from resolver.errors import Unauthenticated
from tests.support.identities import Authority, Issued, public_pem, token

SIGNER = ec.generate_private_key(ec.SECP256R1())
LINK, RESOLVE = "FederationService/Link", "ResolveService/Resolve"


class Connection:
    """Fake of gRPC's context of a call."""

    def __init__(self, issued: Issued | None = None, *headers: tuple[str, str]) -> None:
        self._issued = issued
        self._headers = headers

    def auth_context(self) -> Mapping[str, Any]:
        return {"x509_pem_cert": [self._issued.cert]} if self._issued else {}

    def invocation_metadata(self) -> Any:
        return self._headers


def bearer(text: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {text}")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def jwt_key(tmp_path: Path) -> str:
    file = tmp_path / "login.pem"
    file.write_bytes(public_pem(SIGNER))
    return str(file)


def tls(authority: Authority, client: str = "require") -> TlsConfig:
    own = authority.server()
    return TlsConfig(**{part: str(file) for part, file in own.files.items()}, client_auth=client)


def test_the_token_goes_before_the_certificate(authority: Authority, jwt_key: str) -> None:
    identities = Authenticator(tls(authority), AuthConfig(jwt_key=jwt_key, allow_anonymous=False))
    bob, given = authority.issue("bob"), token(SIGNER, "ES256", sub="carol")
    assert identities.authenticate(Connection(bob), RESOLVE) == Identity("User:bob")
    assert identities.authenticate(Connection(bob, bearer(given)), RESOLVE) == Identity(
        "User:carol", (), given
    )
    # Not even a good certificate stands in for a token that is none.
    with pytest.raises(Unauthenticated):
        identities.authenticate(Connection(bob, bearer("x.y.z")), RESOLVE)


def test_a_connection_outlives_its_certificate_and_its_calls_do_not(authority: Authority) -> None:
    now = [time.time()]
    identities = Authenticator(tls(authority), AuthConfig(), lambda: now[0])
    bob = Connection(authority.issue("bob"))
    assert identities.authenticate(bob, RESOLVE).principal == "User:bob"
    now[0] += 90_000
    with pytest.raises(Unauthenticated, match="the certificate has expired"):
        identities.authenticate(bob, RESOLVE)


def test_a_cluster_may_link_and_nothing_else(authority: Authority, jwt_key: str) -> None:
    identities = Authenticator(tls(authority), AuthConfig(jwt_key=jwt_key, allow_anonymous=False))
    server = authority.issue("la-1", uris=["kdir://cluster/kc-1"], dns=["la-1.example"])
    assert identities.authenticate(Connection(server), LINK) == Identity("Cluster:kc-1", ("kc-1",))
    with pytest.raises(Unauthenticated, match="carries no user's rights"):
        identities.authenticate(Connection(server), RESOLVE)
    # In a caller's name: by that caller's token.
    given = token(SIGNER, "ES256")
    found = identities.authenticate(Connection(server, bearer(given)), RESOLVE)
    assert found == Identity("User:alice", ("kc-1",), given)
    open_to_all = Authenticator(tls(authority), AuthConfig(allow_anonymous=True))
    assert open_to_all.authenticate(Connection(server), RESOLVE) == Identity(
        "User:ANONYMOUS", ("kc-1",)
    )


@pytest.mark.parametrize("client", ["require", "none"])
def test_who_says_nothing_is_anonymous_or_refused(
    authority: Authority, jwt_key: str, client: str
) -> None:
    nobody = authority.issue()
    settings = tls(authority, client)
    allowed = Authenticator(settings, AuthConfig(jwt_key=jwt_key, allow_anonymous=True))
    assert allowed.authenticate(Connection(nobody), RESOLVE) == Identity("User:ANONYMOUS")
    refused = Authenticator(settings, AuthConfig(jwt_key=jwt_key, allow_anonymous=False))
    for method in (RESOLVE, LINK):
        with pytest.raises(Unauthenticated, match="no token was sent"):
            refused.authenticate(Connection(nobody), method)


def test_a_certificate_says_nothing_where_none_is_asked_for(
    authority: Authority, jwt_key: str
) -> None:
    identities = Authenticator(
        tls(authority, "none"), AuthConfig(jwt_key=jwt_key, allow_anonymous=True)
    )
    found = identities.authenticate(Connection(authority.issue("bob")), RESOLVE)
    assert found == Identity("User:ANONYMOUS")


def test_a_token_where_none_are_taken_is_refused_and_not_passed_over(authority: Authority) -> None:
    identities = Authenticator(tls(authority), AuthConfig(allow_anonymous=True))
    with pytest.raises(Unauthenticated, match="takes no tokens"):
        identities.authenticate(Connection(authority.issue("bob"), bearer("x")), RESOLVE)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ((), ""),
        ((("x-request-id", "1"),), ""),
        ((bearer("x.y"),), "x.y"),
        ((("authorization", "bearer x.y"),), "x.y"),
        ((("authorization", "Basic eDp5"),), None),
        ((("authorization", "Bearer"),), None),
        ((("authorization", ""),), None),
        ((bearer("a"), bearer("b")), None),
    ],
)
def test_one_bearer_token_or_none(headers: tuple[tuple[str, str], ...], found: str | None) -> None:
    if found is None:
        with pytest.raises(Unauthenticated, match="one 'Bearer TOKEN'"):
            bearer_of(headers)
    else:
        assert bearer_of(headers) == found


def test_clusters_of_one_address_let_the_same_callers_in(
    authority: Authority, jwt_key: str
) -> None:
    one, other = tls(authority), tls(authority)
    plain, strict = AuthConfig(), AuthConfig(jwt_key=jwt_key)
    assert identities_of([("a", None, plain), ("b", None, plain)]) is None
    assert identities_of([("a", one, strict), ("b", one, strict)]) is not None
    for second in ((other, strict), (one, plain), (None, strict)):
        with pytest.raises(ConfigError, match="clusters a and b listen at one address"):
            identities_of([("a", one, strict), ("b", *second)])


def test_no_token_is_shown(authority: Authority) -> None:
    assert "secret" not in repr(Identity("User:a", (), "secret"))
    assert "secret" not in repr(Call(0.0, bearer="secret"))


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:50212", "10.0.0.7"),
        ("ipv6:%5B::1%5D:50212", "::1"),
        ("ipv6:[2001:db8::1]:1", "2001:db8::1"),
        ("ipv6:%5B::ffff:10.0.0.7%5D:1", "10.0.0.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::1"),
        ("unix:/tmp/x", ""),
        ("", ""),
    ],
)
def test_the_host_is_the_peer_s_address(peer: str, host: str) -> None:
    assert Call(0.0, find_peer=lambda: peer).host == host


def test_the_host_of_a_principal_that_is_asked_for_is_the_callers_own() -> None:
    assert Call(0.0, find_peer=lambda: "ipv4:10.0.0.7:1", caller_host="10.0.0.8").host == "10.0.0.8"
