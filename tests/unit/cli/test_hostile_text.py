"""What a server says acts on no terminal: no escapes, no lines or columns of its own."""

from __future__ import annotations

import ast
import json
import unicodedata
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import resolver.cli
from resolver.cli.registry import GROUPS
from tests.support.command_line import Ran, run
from tests.unit.cli.hostile import TOPIC, hostile_transport

pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")

READS = (
    ["ls", "/la"],
    ["ls", "-l", "/la"],
    ["ls", "-R", "/la"],
    ["tree", "/la"],
    ["stat", TOPIC],
    ["resolve", TOPIC],
    ["which", "clicks"],
    ["trace", TOPIC],
    ["effective", TOPIC],
    ["history", TOPIC],
    ["mounts", "/la"],
    ["grants", TOPIC],
    ["check", "User:ana", "READ", TOPIC],
    ["features"],
    ["doctor"],
    ["verify", "/la"],
    ["set", "--plan", TOPIC, "owner=x"],
    ["rm", "--plan", TOPIC],
)
STRUCTURED = (["export", TOPIC],)
"""Reads that have no table: escapes may take lines of their own."""

_NASTY = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\tfake\trow\x85\u2028\u202e\u2066\u200f\x00\x7f"


def texts() -> st.SearchStrategy[str]:
    pieces = st.sampled_from([*_NASTY, "\x1b[31m", "\x1b[0m", "a", "é", " ", "\\", '"', "'", ":"])
    return st.lists(pieces, min_size=1, max_size=12).map("".join)


def acts_on_a_terminal(character: str) -> bool:
    """True if a character is C0, DEL, C1, a line separator, or changes the direction of text."""
    return character != "\n" and (unicodedata.category(character) in {"Cc", "Cf", "Zl", "Zp", "Cs"})


def ran(arguments: list[str], text: str, *, terminal: bool = False) -> Ran:
    transport, endpoint = hostile_transport(text)
    return run(["--at", endpoint, *arguments], transport, terminal=terminal)


@pytest.mark.parametrize("arguments", READS, ids=" ".join)
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=texts())
@example(text=_NASTY)
def test_it_reaches_no_terminal(arguments: list[str], text: str) -> None:
    mild = ran(arguments, "x" * len(text))
    assert mild.code != 2, mild.err
    for form, terminal in (("", False), ("", True), ("table", False), ("name", False)):
        asked = [*arguments, "-o", form] if form else arguments
        found, plain = (ran(asked, one, terminal=terminal) for one in (text, "x" * len(text)))
        for stream in (found.out, found.err):
            shown = stream if terminal else stream.replace("\t", "")
            assert not [one for one in shown if acts_on_a_terminal(one)]
        assert found.code == plain.code
        assert found.out.count("\n") == plain.out.count("\n")
        assert found.err.count("\n") == plain.err.count("\n")
        columns = [line.count("\t") for line in plain.out.split("\n")]
        assert [line.count("\t") for line in found.out.split("\n")] == columns


@pytest.mark.parametrize("arguments", [*READS, *STRUCTURED], ids=" ".join)
@settings(
    max_examples=5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=texts())
@example(text=_NASTY)
def test_json_is_ascii_and_yaml_is_plain(arguments: list[str], text: str) -> None:
    as_json = ran([*arguments, "-o", "json"], text).out
    assert as_json.isascii()
    assert all(json.loads(line) is not None for line in as_json.splitlines())
    as_yaml = ran([*arguments, "-o", "yaml"], text).out
    assert not [one for one in as_yaml if acts_on_a_terminal(one)]
    assert list(yaml.safe_load_all(as_yaml)) is not None


def test_every_verb_that_reads_is_tried() -> None:
    tried = {arguments[0] for arguments in (*READS, *STRUCTURED)}
    reading = set(GROUPS["Read"])
    # These follow a stream without an end, or read the index or change logs, which no server has,
    # or serve pages, which tests/unit/cli/test_web_pages.py try with such texts.
    assert reading - tried <= {"watch", "find", "audit", "ui"}


_WRITERS = {"output.py"}
_OWN_FIELDS = {"main.py": {"overview", "verb_help", "_version"}}


def test_only_one_place_prints() -> None:
    """All else would go around the cleaning."""
    found = []
    for file in sorted(Path(str(resolver.cli.__file__)).parent.glob("*.py")):
        if file.name in _WRITERS:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            match node.func:
                case ast.Name(id="print"):
                    arguments = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
                    if not arguments & _OWN_FIELDS.get(file.name, set()):
                        found.append(f"{file.name}:{node.lineno}: print")
                case ast.Attribute(attr="write" | "writelines", value=ast.Attribute(attr=stream)):
                    if stream in {"stdout", "stderr"}:
                        found.append(f"{file.name}:{node.lineno}: {stream}")
                case _:
                    pass
    assert found == []
