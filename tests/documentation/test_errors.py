"""docs/reference/errors.md has each reason of the contract, with code, exit code and example."""

import re
from pathlib import Path

from resolver.errors import (
    Absent,
    Conflict,
    Denied,
    InvalidInput,
    KdirError,
    Unavailable,
    by_reason,
)

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto" / "kdir" / "v1" / "error.proto"
PAGE = ROOT / "docs" / "reference" / "errors.md"
_REASON = re.compile(
    r"// (?P<code>[A-Z_]+)\. Example: (?P<example>.+)\n\s+ERROR_REASON_(?P<name>[A-Z_]+) = \d+;"
)


def rows_of_the_contract() -> list[str]:
    """Returns the table's rows as they must be."""
    found = []
    for match in _REASON.finditer(PROTO.read_text()):
        kind = by_reason(match["name"])
        # A reason that this version's classes do not have ends the command line as any other error.
        exit_code = kind.exit_code if kind is not KdirError else KdirError.exit_code
        example = match["example"].replace("|", r"\|")
        found.append(f"| `{match['name']}` | {match['code']} | {exit_code} | {example} |")
    return found


def test_the_page_holds_each_reason_as_the_contract_has_it() -> None:
    wanted = rows_of_the_contract()
    assert len(wanted) > 50
    found = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert found == wanted


def test_every_reason_of_the_contract_was_read() -> None:
    from kdir.v1 import error_pb2

    every = len(error_pb2.ErrorReason.DESCRIPTOR.values)
    assert len(rows_of_the_contract()) == every - 1  # all but "unspecified"


def test_the_exit_codes_are_those_of_the_errors() -> None:
    section = PAGE.read_text().partition("## Exit codes")[2].partition("\n## ")[0]
    shown = dict(re.findall(r"^\| (\d) \| ([a-z]+)", section, re.MULTILINE))
    codes = [kind.exit_code for kind in (Absent, InvalidInput, Unavailable, Denied, Conflict)]
    assert [shown[str(code)] for code in (0, *codes)] == [
        "ok",
        "absent",
        "usage",
        "unavailable",
        "denied",
        "conflict",
    ]
