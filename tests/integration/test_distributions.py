"""What is published: source distribution and wheel, installed where only chosen packages are.

Without the packages of an extra each of its features is refused in one sentence, which names the
extra and the command that installs it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from resolver.extras import EXTRAS
from tests.support.distributions import Installed, build_sdist, build_wheel, copied_checkout
from tests.support.pages import ROOT


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    return build_sdist(copied_checkout(folder / "checkout"), folder)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel, made of the source distribution as pip makes it."""
    return build_wheel(sdist, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Returns an environment without any extra."""
    return Installed(tmp_path_factory.mktemp("bare"), wheel)


def headers(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def test_the_source_distribution_has_documentation_and_tests(sdist: Path) -> None:
    for name in (
        "CHANGELOG.md", "LICENSE", "MANIFEST.in", "Makefile", "constraints.txt",
        "deploy/README.md", "docs/README.md", "docs/decisions/README.md",
        "proto/kdir/v1/entry.proto",
        "tests/conftest.py", "tests/support/federation.py",
    ):  # fmt: skip
        assert (sdist / name).read_bytes() == (ROOT / name).read_bytes(), name
    pages = {str(one.relative_to(ROOT)) for one in (ROOT / "docs").rglob("*.md")}
    assert pages == {str(one.relative_to(sdist)) for one in (sdist / "docs").rglob("*.md")}
    assert not list(sdist.rglob("*.pyc"))


def test_the_wheel_has_the_packages_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {one for one in tops if not one.endswith(".dist-info")} == {
        "directory", "kdir", "resolver",
    }  # fmt: skip
    assert {"kdir/py.typed", "kdir/__init__.py", "resolver/extras.py"} <= set(names)


def test_the_wheel_has_licence_authors_and_classifiers(wheel: Path) -> None:
    found = headers(wheel)
    assert found["License-Expression"] == "Apache-2.0"
    assert found.get_all("License-File") == ["LICENSE"]
    assert found["Author"] == "The kdir maintainers"
    assert "Typing :: Typed" in found.get_all("Classifier", [])
    assert set(EXTRAS) <= set(found.get_all("Provides-Extra", []))
    with ZipFile(wheel) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith("/licenses/LICENSE")]
        assert archive.read(name) == (ROOT / "LICENSE").read_bytes()


def test_the_long_description_has_no_link_into_a_checkout(wheel: Path) -> None:
    text = headers(wheel).get_payload()
    assert isinstance(text, str)
    assert headers(wheel)["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# kdir\n")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [one for one in links if not one.startswith("https://")] == []
    assert "Documentation by question (`docs/README.md`)" in text


@dataclass(frozen=True, slots=True)
class Refused:
    """A feature of an extra: what is run, what it is called, and the package that is missing."""

    extra: str
    feature: str
    package: str
    command: tuple[str, ...]
    config: str = ""
    """A server's; a flag of the command leads to it."""

    def __str__(self) -> str:
        return f"{self.extra}: {' '.join(self.command)[:60]}"


def server(extra: str, feature: str, package: str, config: str) -> Refused:
    command = ("kdir", "server", "--check", "--config", "server.toml")
    return Refused(extra, feature, package, command, config)


def program(extra: str, feature: str, package: str, code: str) -> Refused:
    return Refused(extra, feature, package, ("python", "-c", code))


_TLS = 'mount = "/x"\n[tls]\ncert = "c.pem"\nkey = "k.pem"\nca = "a.pem"\n'
_INDEX = "the index"
_ETCD = "etcd://127.0.0.1:1/kdir"
REFUSED = [
    server("kafka", "[kafka]", "confluent-kafka",
           'mount = "/x"\nkafka.bootstrap = ["127.0.0.1:1"]\n'),
    Refused("kafka", "[kafka]", "confluent-kafka",
            ("kdir", "server", "--mount", "/x", "--kafka", "127.0.0.1:1")),
    Refused("kafka", "kdir produce", "confluent-kafka",
            ("kdir", "produce", "/x/t", "--at", "127.0.0.1:1")),
    Refused("kafka", "kdir consume", "confluent-kafka",
            ("kdir", "consume", "/x/t", "--at", "127.0.0.1:1")),
    Refused("kafka", "kdir stat --groups", "confluent-kafka",
            ("kdir", "stat", "/x/t", "--groups", "--at", "127.0.0.1:1")),
    program("kafka", "Producer", "confluent-kafka", "from kdir import Producer"),
    program("kafka", "Consumer", "confluent-kafka", "from resolver.kafka import Consumer"),
    server("etcd", "a store at etcd://…", "etcd3", f'mount = "/x"\nstore = "{_ETCD}"\n'),
    Refused("etcd", "a store at etcd://…", "etcd3",
            ("kdir", "migrate", _ETCD, "sqlite:///new.sqlite", "--yes")),
    server("identity", "[tls]", "cryptography", _TLS),
    server("identity", "[auth] with a key of tokens", "cryptography",
           'mount = "/x"\n[auth]\njwt_key = "login.pem"\n'),
    server("identity", "[auth] with a key of tokens", "cryptography",
           'mount = "/x"\n[auth]\njwks = "keys.json"\n'),
    Refused("index", _INDEX, "pyarrow", ("kdir", "index", "build", "--at", "127.0.0.1:1")),
    Refused("index", _INDEX, "pyarrow", ("kdir", "index", "report")),
    Refused("index", _INDEX, "pyarrow", ("kdir", "find", "click")),
    program("index", _INDEX, "pyarrow",
            "from resolver.index.build import build; build(['127.0.0.1:1'], 'table')"),
    program("index", _INDEX, "pyarrow",
            "from resolver.index.search import find; find('table', 'x')"),
    program("index", "Spark's data source kdir.changes", "pyspark",
            "from resolver.index.spark_source import register"),
]  # fmt: skip


@pytest.mark.parametrize("one", REFUSED, ids=str)
def test_without_its_extra_a_feature_is_refused_in_one_sentence(
    bare: Installed, one: Refused
) -> None:
    (bare.folder / "server.toml").write_text(one.config)
    done = bare.run(*one.command)
    wanted = (
        f"{one.feature} needs the package {one.package}, which is not installed: "
        f"pip install 'kdir[{one.extra}]'"
    )
    if one.command[0] == "kdir":
        assert done.returncode == 2
        assert done.stderr.removesuffix("\n").removesuffix(" (INVALID_ARGUMENT)") == (
            f"error: {wanted}"
        )
    else:
        assert done.returncode == 1
        assert (
            done.stderr.splitlines()[-1].partition(": ")[2].removesuffix(" (INVALID_ARGUMENT)")
            == wanted
        )
    assert not (bare.folder / "table").exists()


def test_each_extra_has_a_feature_above() -> None:
    assert {one.extra for one in REFUSED} == set(EXTRAS)


def test_without_extras_the_rest_works_and_doctor_lists_them(bare: Installed) -> None:
    bare.pip("check")
    done = bare.run("kdir", "server", "--check", "--mount", "/x")
    assert done.returncode == 0, done.stderr
    done = bare.run("kdir", "doctor", "--at", "127.0.0.1:1")
    for extra in EXTRAS:
        assert f"kdir[{extra}] not installed" in done.stdout + done.stderr


USES = {
    "kafka": "from kdir import Consumer, Producer, Resolver\n"
    "with Resolver('127.0.0.1:1') as one: assert Producer(one).close() == 0",
    "etcd": "import directory.store.etcd.store",
    "identity": "import jwt; from directory.server import authentication, certificates\n"
    "jwt.encode({}, 'x' * 32, algorithm='HS256'); import cryptography.x509",
    "index": "import duckdb; from resolver.index import build, search, spark_source\n"
    "from resolver.index.spark_session import require\n"
    "require('pyarrow', 'deltalake', 'duckdb', 'pyspark')",
}


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_alone_brings_what_its_features_need(
    wheel: Path, tmp_path: Path, extra: str
) -> None:
    """The command of the sentence finds nothing more to install there, without any index."""
    installed = Installed(tmp_path, wheel, [extra])
    done = installed.run("python", "-c", USES[extra])
    assert done.returncode == 0, done.stderr
    assert "Would install" not in installed.pip("install", "--dry-run", f"kdir[{extra}]").stdout
