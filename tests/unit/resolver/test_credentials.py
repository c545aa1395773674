"""A user's credentials: whose cached answers they may read."""

import base64
import json
from pathlib import Path

import pytest

from resolver.credentials import UserCredentials
from resolver.file_reload import ReloadingValue
from resolver.user_config import LoginSettings
from tests.support.identities import Authority, Issued


def jwt(**claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJFUzI1NiJ9.{payload}.c2lnbmF0dXJl"


def of_token(file: Path, token: str) -> str:
    file.write_text(token)
    file.chmod(0o600)
    return UserCredentials(LoginSettings(token_file=str(file))).fingerprint


def of_certificate(issued: Issued) -> str:
    ca, cert, key = (str(issued.files[part]) for part in ("ca", "cert", "key"))
    return UserCredentials(LoginSettings(ca, cert, key)).fingerprint


@pytest.mark.parametrize(
    "others",
    [
        ["token-of-alice", "token-of-bob", "a.b.c", "a.b.d"],
        [
            jwt(iss="i", sub="alice", exp=1),
            jwt(iss="i", sub="bob", exp=1),
            jwt(iss="other", sub="alice", exp=1),
            jwt(iss="i", sub="alice", actor="bob", exp=1),
        ],
    ],
)
def test_two_principals_with_a_token_at_one_path_have_two_fingerprints(
    tmp_path: Path, others: list[str]
) -> None:
    found = {of_token(tmp_path / "token", one) for one in others}
    assert len(found) == len(others)
    assert not found & set(others)


def test_a_renewed_token_has_the_same_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "token"
    first = of_token(file, jwt(iss="i", sub="alice", exp=1, jti="1"))
    assert of_token(file, jwt(iss="i", sub="alice", exp=2, jti="2")) == first
    token = jwt(iss="i", sub="alice", exp=3)
    assert UserCredentials(LoginSettings(token=token)).fingerprint == first


def test_two_certificates_at_one_path_have_two_fingerprints(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("alice")
    found = {of_certificate(issued)}
    others = [
        authority.issue("bob"),
        authority.issue("alice", uris=["spiffe://example/a"]),
        authority.issue("alice", uris=["spiffe://example/b"]),
        Authority(tmp_path / "other", "other").issue("alice"),
    ]
    for other in others:
        issued.take(other)
        found.add(of_certificate(issued))
    assert len(found) == 1 + len(others)


@pytest.mark.parametrize("uris", [[], ["spiffe://example/a"]])
def test_a_renewed_certificate_of_the_same_names_has_the_same_fingerprint(
    tmp_path: Path, uris: list[str]
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("alice", uris=uris)
    first = of_certificate(issued)
    issued.take(authority.issue("alice", uris=uris))
    assert of_certificate(issued) == first


def test_files_that_are_renewed_while_they_are_taken_need_another_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = Authority(tmp_path).issue("alice")
    real = ReloadingValue.value

    def value(self: ReloadingValue[object], *, look: bool = False) -> object:
        found = real(self, look=look)
        self.generation += 1  # by another thread
        return found

    credentials = UserCredentials(LoginSettings(str(issued.files["ca"])))
    first, _ = credentials.tls()
    monkeypatch.setattr(ReloadingValue, "value", value)
    assert credentials.tls()[0] == first
    assert credentials.tls()[0] > first
