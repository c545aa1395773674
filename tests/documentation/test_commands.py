"""docs/reference/verbs.md shows every verb as it is declared; commands in docs are valid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from directory.maintenance.offline_commands import PARSERS
from directory.server import command_line
from resolver.cli.adopt import read_rules
from resolver.cli.parser import UsageError, parse, split_verb
from resolver.cli.registry import GROUPS, load_verb

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "verbs.md"
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))),
]
_FENCE = re.compile(r"^```\w*\n(?P<body>.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`(kdir [^`]+)`")


def rows_of_the_command_line() -> list[str]:
    """Returns the rows that the page must have, with the verbs' own words."""
    rows = []
    for group, names in GROUPS.items():
        for name in names:
            verb = load_verb(name)
            assert verb is not None
            example = verb.examples[0][0].replace("|", r"\|")
            rows.append(f"| {group} | `{name}` | {verb.summary} | `{example}` |")
    return rows


def commands_in(page: str) -> Iterator[str]:
    """Yields command lines of kdir in a page, from blocks and from inline code, without
    comments.
    """
    text = (ROOT / page).read_text()
    for block in _FENCE.finditer(text):
        for line in block["body"].splitlines():
            command = line.strip().removeprefix("$ ").partition(" #")[0]
            if command.startswith("kdir "):
                yield command
    for match in _CODE.finditer(_FENCE.sub("", text)):
        yield " ".join(match[1].split()).replace(r"\|", "|")


def check(command: str) -> None:
    """Reads a command as kdir does.

    Raises:
        UsageError: it is none; so is one of a server that argparse refuses.
    """
    arguments = shlex.split(command)[1:]
    if arguments == ["--help"] or "VERB" in arguments:  # speaks of any verb
        return
    _, name, rest = split_verb(arguments)
    verb = load_verb(name)
    if verb is None:
        raise UsageError(f"{command}: no such verb")
    if verb.raw:
        try:
            PARSERS.get(name, command_line.parser)().parse_args(rest)
        except SystemExit as ended:
            raise UsageError(command) from ended
    elif not rest:
        return  # a verb that is spoken of, such as `kdir adopt`
    else:
        parse(verb, rest)


def test_the_page_shows_every_verb_as_it_is_declared() -> None:
    found = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \w+ \| `", line)]
    assert found == rows_of_the_command_line()


@pytest.mark.parametrize("page", PAGES)
def test_each_command_in_the_docs_is_one(page: str) -> None:
    for command in commands_in(page):
        check(command)


def test_the_readme_has_commands() -> None:
    assert len(list(commands_in("README.md"))) > 12


@pytest.mark.parametrize(
    "command",
    ["kdir lss /la", "kdir ls --nope", "kdir mount /la --chidl x", "kdir server --mont /la"],
)
def test_a_command_that_is_none_is_found(command: str) -> None:
    with pytest.raises(UsageError):
        check(command)


def test_the_mapping_rules_that_are_shown_are_rules(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "how-to" / "map-existing-topics.md").read_text()
    shown = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    file = tmp_path / "rules.toml"
    file.write_text("".join(shown))
    first, second = read_rules(str(file))
    assert (first.match, first.split_on, second.ignore) == ("search.*", ".", True)
