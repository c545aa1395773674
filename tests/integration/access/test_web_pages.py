"""``kdir ui`` on real servers that enforce: what its user may read, and why the rest is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.integration.access.test_across_mounts import ENFORCE, grant
from tests.integration.identity.conftest import SecureFederation
from tests.support.federation import eventually
from tests.support.identities import Authority, Issued

KDIR = str(Path(sys.executable).with_name("kdir"))


@contextmanager
def serving(
    servers: str, issued: Issued, home: Path, parts: Sequence[str] = ("ca", "cert", "key")
) -> Iterator[str]:
    """Yields the address of ``kdir ui`` for who has these parts of a certificate."""
    variables = {f"KDIR_{part.upper()}": str(issued.files[part]) for part in parts}
    places = {f"XDG_{name}_HOME": str(home / name) for name in ("CONFIG", "CACHE", "DATA")}
    with subprocess.Popen(
        [KDIR, "ui", "--listen", "127.0.0.1:0", "--at", servers],
        env=os.environ | variables | places,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip().removesuffix("/")
        finally:
            process.terminate()


def read(url: str) -> tuple[int, str]:
    try:
        with urlopen(url, timeout=30) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def section(html: str, heading: str) -> str:
    return html.partition(f"<h2>{heading}</h2>")[2].partition("</section>")[0]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[SecureFederation]:
    authority = Authority(tmp_path / "ca")
    with SecureFederation(tmp_path / "servers", authority) as federation:
        federation.start("/", **ENFORCE)
        federation.join("/la", "/", **ENFORCE)
        federation.start("/alone", **ENFORCE)
        federation["/la"].mkdir("/la/search/deep")
        federation["/la"].mkdir("/la/secret")
        eventually(lambda: federation["/"].mounted() == ["/la"])
        yield federation


def test_pages_show_what_their_user_may_read_and_why_the_rest_is_missing(
    federation: SecureFederation, tmp_path: Path
) -> None:
    bob = federation.authority.issue("bob")
    grant(federation["/la"], "bob", "/la", "describe")
    grant(federation["/la"], "bob", "/la/secret", "-describe")
    with serving(federation["/la"].address, federation.admin, tmp_path) as admin:
        status, page = read(f"{admin}/la/")
        assert status == 200
        assert 'href="/la/secret/"' in page
        assert "User:admin" in section(page, "Last changes")
        assert "User:bob" in section(page, "Grants set here")
        with serving(federation["/la"].address, bob, tmp_path) as bobs:
            status, page = read(f"{bobs}/la/")
            assert status == 200
            assert 'href="/la/search/"' in page
            assert "secret" not in page
            status, page = read(f"{bobs}/la/secret/")
            assert status == 404  # it is hidden
            assert "or you lack DESCRIBE on it" in page
        with serving(federation["/la"].address, bob, tmp_path, parts=("ca",)) as nobodys:
            assert read(f"{nobodys}/la/")[0] == 403
        assert read(f"{admin}/la/nowhere")[0] == 404
        federation["/la"].kill()
        status, page = read(f"{admin}/la/search/")
        assert status == 503
        assert "neither absent nor empty" in page
    with serving(federation["/"].address, federation.admin, tmp_path) as admin:
        # A child that died is marked at its parent, and its directories are not empty.
        eventually(lambda: "<td class=bad>disconnected" in read(f"{admin}/")[1])
        assert read(f"{admin}/la/")[0] == 503
    with serving(federation["/alone"].address, federation.admin, tmp_path) as admin:
        status, page = read(f"{admin}/")
        assert status == 503
        assert "(NO_ROUTE)" in page
        assert 'href="/alone/"' in page
