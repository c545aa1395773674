"""What kdir says of itself is true: each verb's help, its examples, and the lists of verbs."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import resolver.cli
from directory.maintenance.offline_commands import PARSERS
from directory.server.command_line import parser as server_parser
from resolver.cli.main import main, overview, verb_help
from resolver.cli.parser import Verb, parse, split_verb
from resolver.cli.registry import FAMILIES, GROUPS, every_verb, load_verb

VERBS = list(every_verb())
RAW_VERBS = {"server": server_parser, **PARSERS}
EXAMPLES = [(verb, command) for verb in VERBS for command, _ in verb.examples]


def test_every_verb_is_in_one_group_and_one_family() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    of_families = [name for names in FAMILIES.values() for name in names]
    assert sorted(grouped) == sorted(of_families)
    assert len(set(grouped)) == len(grouped)


def test_the_file_of_a_family_is_named_as_one_of_its_verbs() -> None:
    assert [family for family, names in FAMILIES.items() if family not in names] == []


def test_the_registry_says_what_the_files_declare() -> None:
    for family, names in FAMILIES.items():
        declared = import_module(f"resolver.cli.{family}").VERBS
        assert tuple(verb.name for verb in declared) == names


def test_no_file_declares_verbs_that_nobody_finds() -> None:
    folder = Path(next(iter(resolver.cli.__path__)))
    declaring = {
        file.stem
        for file in folder.glob("*.py")
        if re.search(r"^VERBS\b", file.read_text(), re.MULTILINE)
    }
    assert declaring == set(FAMILIES)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_explains_the_verb_with_an_example(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb.name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text == verb_help(verb) + "\n"
    assert verb.summary in text
    assert verb.examples
    for command, meaning in verb.examples:
        assert command in text
        assert meaning
    for option in verb.options:
        assert all(name in text for name in option.names), option
        assert option.help
    for line in text.splitlines():
        assert len(line) <= 110, line


@pytest.mark.parametrize(
    ("verb", "command"), EXAMPLES, ids=[f"{verb.name}-{n}" for n, (verb, _) in enumerate(EXAMPLES)]
)
def test_each_example_is_a_command(verb: Verb, command: str) -> None:
    # An example may stand in a pipe, or in $(…).
    found = re.search(r"(?:^|[|(]\s*)(kdir [^|)>]*)", command)
    assert found is not None, command
    arguments = shlex.split(found[1].partition("<")[0])
    _, name, rest = split_verb(arguments[1:])
    assert name == verb.name
    if verb.raw:
        RAW_VERBS[name]().parse_args(rest)
    else:
        parse(verb, rest)


def test_the_overview_lists_every_verb_with_its_summary() -> None:
    text = overview()
    for verb in VERBS:
        assert re.search(rf"^  {verb.name} +{re.escape(verb.summary)}$", text, re.MULTILINE)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_for_the_whole(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out == overview() + "\n"


@pytest.mark.parametrize(
    "arguments", [["help", "ls"], ["--help", "ls"], ["ls", "-h"], ["ls", "--help", "x"]]
)
def test_help_for_one_verb(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("kdir ls: ")


@pytest.mark.parametrize("name", RAW_VERBS)
def test_what_help_says_of_a_verb_that_runs_elsewhere_is_what_is_taken_there(name: str) -> None:
    verb = load_verb(name)
    assert verb is not None
    assert verb.raw
    documented = {name for option in verb.own_options() for name in option.names}
    accepted = {
        name
        for action in RAW_VERBS[name]()._actions
        for name in action.option_strings
        if name not in {"-h", "--help"} and action.help != argparse.SUPPRESS
    }
    assert documented == accepted
