"""kdir over TLS: contexts with credentials, exit codes, what doctor says of who one is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.identity.conftest import SecureFederation
from tests.support.identities import Authority

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def kdir(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("KDIR_", "XDG_"))
    }
    environment |= {
        "HOME": str(home),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}",
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-m", "resolver.cli.main", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_context_says_who_the_user_is(
    secure: SecureFederation, authority: Authority, home: Path
) -> None:
    root = secure.start("/")
    alice = authority.issue("alice")
    login = [
        argument for part, file in alice.files.items() for argument in (f"--{part}", str(file))
    ]
    made = kdir(home, "context", "set", "prod", "--servers", root.address, *login)
    assert made.returncode == 0, made.stderr
    # Named by its servers, too; a context of nobody else's.
    ran = kdir(home, "--at", root.address, "mkdir", "/a")
    assert ran.returncode == 0, ran.stderr
    shown = kdir(home, "--context", "prod", "stat", "/a", "-o", "json")
    assert '"changed_by": "User:alice"' in shown.stdout
    listed = kdir(home, "context")
    assert f"certificate {alice.files['cert']}" in listed.stdout
    assert "PRIVATE" not in listed.stdout
    doctor = kdir(home, "doctor", "--context", "prod")
    assert "identity: User:alice by certificate" in doctor.stderr, doctor.stderr
    assert doctor.returncode == 0


def test_what_is_wrong_with_credentials_ends_with_4_and_a_reason(
    secure: SecureFederation, authority: Authority, home: Path, tmp_path: Path
) -> None:
    root = secure.start("/")
    bob = authority.issue("bob")
    output = {f"KDIR_{part.upper()}": str(file) for part, file in bob.files.items()}
    assert kdir(home, "--at", root.address, "ls", "/", **output).returncode == 0
    other = Authority(tmp_path / "other").issue("bob")
    stranger = {
        **output,
        "KDIR_CERT": str(other.files["cert"]),
        "KDIR_KEY": str(other.files["key"]),
    }
    refused = kdir(home, "--at", root.address, "ls", "/", **stranger)
    assert refused.returncode == 4
    assert "does it not take the certificate of this side" in refused.stderr
    fooled = kdir(
        home, "--at", root.address, "ls", "/", **{**output, "KDIR_CA": str(other.files["ca"])}
    )
    assert fooled.returncode == 4
    assert "its certificate is of no CA that is trusted here" in fooled.stderr
    token = kdir(home, "--at", root.address, "ls", "/", **output, KDIR_TOKEN="x.y.z")
    assert token.returncode == 4
    assert "this server takes no tokens" in token.stderr
    plain = kdir(home, "--at", root.address, "ls", "/")
    assert plain.returncode == 3
    assert "does it want TLS?" in plain.stderr
    mixed = kdir(
        home, "--at", root.address, "ls", "/", **{**output, "KDIR_KEY": str(other.files["key"])}
    )
    assert mixed.returncode == 2
    assert "is not the key of the certificate" in mixed.stderr
    for ran in (refused, fooled, token, plain, mixed):
        assert "ssl_transport_security" not in ran.stderr
