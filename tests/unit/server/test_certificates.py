"""A server's own certificate: what is wrong with its files is said in words before TLS is asked."""

import datetime as dt
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtensionOID

from directory.server.certificates import Certificates, names_of, read_material
from directory.server.config_security import TlsConfig
from directory.server.principal_mapping import CertificateNames
from directory.server.toml_table import ConfigError
from resolver.errors import Unauthenticated
from tests.support.identities import Authority, Issued, with_unknown_curve, with_unknown_version


def config(issued: Issued) -> TlsConfig:
    return TlsConfig(**{part: str(file) for part, file in issued.files.items()})


SAN = ExtensionOID.SUBJECT_ALTERNATIVE_NAME


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def refusal(tls: TlsConfig) -> str:
    with pytest.raises(ConfigError) as refused:
        read_material(tls)
    return str(refused.value)


def test_what_a_certificate_says(authority: Authority) -> None:
    issued = authority.issue("la-1", uris=["kdir://cluster/kc-1"], dns=["la-1.example"])
    names = names_of(issued.cert)
    assert names == CertificateNames(
        ("kdir://cluster/kc-1",), ("la-1.example",), (), "la-1", names.ends_at
    )
    assert abs(names.ends_at - (dt.datetime.now(dt.UTC) + dt.timedelta(days=1)).timestamp()) < 600
    assert read_material(config(issued)).names.cluster_ids == ("kc-1",)
    unnamed = names_of(authority.issue().cert)
    assert replace(unnamed, ends_at=inf) == CertificateNames()


@pytest.mark.parametrize("part", ["cert", "key", "ca"])
def test_a_file_that_is_missing_or_no_pem_is_named(authority: Authority, part: str) -> None:
    issued = authority.server()
    file = issued.files[part]
    file.write_text("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
    assert f"tls.{part}: {file}: holds no" in refusal(config(issued))
    file.unlink()
    assert f"tls.{part}: {file}: cannot be read: No such file" in refusal(config(issued))


def test_another_key_an_old_certificate_and_one_of_tomorrow_are_refused(
    authority: Authority,
) -> None:
    one, other = authority.server(), authority.server()
    mixed = replace(config(one), key=str(other.files["key"]))
    assert "is not the key of the certificate in" in refusal(mixed)
    old = authority.server(ends=dt.timedelta(hours=-1))
    assert "the certificate expired at" in refusal(config(old))
    early = authority.server(begins=dt.timedelta(hours=1))
    assert "is not valid before" in refusal(config(early))


def test_a_ca_that_has_ended_is_refused_unless_another_is_beside_it(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.server()
    ended = Authority(tmp_path / "old", ends=dt.timedelta(hours=-1))
    ca = tmp_path / "both.pem"
    ca.write_bytes(ended.pem)
    assert f"tls.ca: {ca}: the certificate expired at" in refusal(
        replace(config(issued), ca=str(ca))
    )
    ca.write_bytes(ended.pem + authority.pem)
    read_material(replace(config(issued), ca=str(ca)))
    assert "1 of its 2 certificates are expired" in caplog.text


def test_names_of_a_kind_that_cannot_be_read_are_refused_and_no_bug(authority: Authority) -> None:
    # An X.400 address, and beside it a URI that would name a user.
    x400 = bytes.fromhex("3014a302300086") + b"\x0ekdir://user/lo"
    odd = authority.server(extension=x509.UnrecognizedExtension(SAN, x400))
    with pytest.raises(Unauthenticated, match="names cannot be read"):
        names_of(odd.cert)
    assert "the certificate's names cannot be read" in refusal(config(odd))


def test_a_key_of_a_curve_that_nobody_knows_is_refused(authority: Authority) -> None:
    issued = authority.server()
    issued.files["cert"].write_bytes(with_unknown_curve(issued.cert))
    assert f"tls.cert: {issued.files['cert']}: its key cannot be used" in refusal(config(issued))


@pytest.mark.parametrize("part", ["cert", "ca"])
def test_a_certificate_of_a_version_that_nobody_reads_is_refused_and_no_bug(
    authority: Authority, part: str
) -> None:
    issued = authority.server()
    odd = with_unknown_version(issued.cert)
    with pytest.raises(Unauthenticated, match="names cannot be read"):
        names_of(odd)
    file = issued.files[part]
    file.write_bytes(odd)
    assert f"tls.{part}: {file}: the certificate cannot be read: 1 is" in refusal(config(issued))


def test_no_key_is_shown(authority: Authority) -> None:
    assert "PRIVATE" not in repr(read_material(config(authority.server())))


def test_files_that_change_are_read_again_and_wrong_ones_are_not_taken(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    issued = authority.server("kc-1")
    certificates = Certificates(config(issued))
    expired = authority.server("kc-2", ends=dt.timedelta(hours=-1))
    issued.take(expired)
    for _ in range(3):
        assert certificates.material.names.cluster_ids == ("kc-1",)
    assert caplog.text.count("is not taken") == 1
    assert "expired at" in caplog.text
    issued.take(authority.server("kc-3"))
    assert certificates.material.names.cluster_ids == ("kc-3",)
