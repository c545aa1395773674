"""docs/reference/configuration.md documents every key of a config, by examples that are right."""

import ast
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from directory.kafka import own_client_settings
from directory.server import config, config_kafka, config_security
from directory.server.config import ConfigError, Limits, parse_config

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "configuration.md"
_ROW = re.compile(
    r"^\| `(?P<key>[^`]+)` \| (?:`(?P<example>[^`]+)`)? ?\| (?P<words>.+) \|$", re.MULTILINE
)
_READERS = {
    "above_zero",
    "addresses",
    "endpoints",
    "flag",
    "path",
    "table",
    "take",
    "text",
    "texts",
}


@dataclass(frozen=True, slots=True)
class Documented:
    key: str
    example: str
    arguments: str


def documented() -> dict[str, Documented]:
    """Returns the rows of the table."""
    rows = (Documented(m["key"].strip("[]"), m["example"] or "", m["words"])
            for m in _ROW.finditer(PAGE.read_text()))  # fmt: skip
    return {row.key: row for row in rows}


def read_by_the_code() -> set[str]:
    """Returns the last part of every key that a config's tables are asked for."""
    trees = [
        ast.parse(Path(str(module.__file__)).read_text())
        for module in (config, config_kafka, own_client_settings, config_security)
    ]
    found = {one.name for one in fields(Limits)}
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.Call(func=ast.Attribute(attr=reader), args=[ast.Constant(value=str(key)), *_]):
                if reader in _READERS:
                    found.add(key)
            case ast.Call(func=ast.Name(id="_choice"), args=[_, ast.Constant(value=str(key)), *_]):
                found.add(key)
            case _:
                pass
    return found


def test_every_key_that_the_code_reads_is_documented() -> None:
    assert {"bootstrap", "mode", "into", "read_threads", "advertise", "jwks"} <= read_by_the_code()
    last = {key.rpartition(".")[2] for key in documented()}
    tables = {"kafka", "limits", "tls", "auth", "dial", "change_log"}
    assert read_by_the_code() - last - tables == set()


@pytest.mark.parametrize("row", documented().values(), ids=lambda row: row.key)
def test_each_example_is_taken(row: Documented) -> None:
    parse_config(tomllib.loads(_document(row)), base=ROOT)


def test_an_example_of_an_unknown_key_is_not_taken() -> None:
    row = Documented(
        "kafka.mapping_rules.inot", 'mapping_rules = [{ match = "*", inot = "x" }]', ""
    )
    with pytest.raises(ConfigError, match="into"):
        parse_config(tomllib.loads(_document(row)))


@pytest.mark.parametrize("limit", fields(Limits), ids=lambda limit: limit.name)
def test_limits_are_shown_with_their_defaults(limit: object) -> None:
    name = limit.name  # type: ignore[attr-defined]
    default = (
        f"{getattr(Limits(), name):g}" if name.endswith("_seconds") else getattr(Limits(), name)
    )
    row = documented()[f"limits.{name}"]
    assert row.example == f"{name} = {default}"
    assert row.arguments.endswith(f"; {default}")


def _document(row: Documented) -> str:
    """A whole config around an example; the example holds the key that it is about."""
    table = row.key.partition(".")[0]
    assert row.example, f"{row.key} has no example"
    assert row.key.rpartition(".")[2] in row.example or row.key == "links"
    if table == "kafka":
        needed = "" if row.key == "kafka.bootstrap" else 'bootstrap = ["127.0.0.1:9092"]\n'
        return f"[kafka]\n{needed}{row.example}\n"
    if table == "change_log":
        bootstrap = 'bootstrap = ["127.0.0.1:9092"]'
        if row.key == "change_log":
            return f"[kafka]\n{bootstrap}\n{row.example}\n"
        needed = "" if row.key == "change_log.bootstrap" else f"{bootstrap}\n"
        return f"[change_log]\n{needed}{row.example}\n"
    if table == "tls":
        lines = {name: f'{name} = "x"' for name in ("cert", "key", "ca")}
        lines[row.key.rpartition(".")[2]] = row.example
        return "\n".join(["[tls]", *lines.values()])
    if table == "auth":
        other = (
            "allow_anonymous = true"
            if row.key in {"auth.jwt_key", "auth.jwks"}
            else 'jwt_key = "x"'
        )
        return f"[auth]\n{other}\n{row.example}\n"
    if table in {"links", "limits", "dial"}:
        return f'mount = "/la/tracking"\n[{table}]\n{row.example}\n'
    return f"{row.example}\n"
