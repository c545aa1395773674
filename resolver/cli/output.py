"""Printing: tables, JSON lines, YAML and names.

Data is printed on stdout, everything else on stderr. On a terminal, or with ``-o table`` or ``-o
wide``, a table has a header, aligned columns and human units; otherwise it is tab-separated lines
of exact values, without a header, for ``cut`` and ``awk``.

All text of verbs is printed by this module, which escapes unprintable characters
(``resolver.printable``): names, owners and messages come from other people, and must not control a
terminal or begin a line or a column. The only escape sequences that are printed are the colours of
this module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from resolver.errors import InvalidArgument
from resolver.message_values import plain
from resolver.printable import printable

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from resolver.cli.jsonpath import Template

__all__ = [
    "JSONPATH",
    "Column",
    "Output",
    "Styled",
    "Table",
    "complain",
    "offer",
    "read_template",
    "yaml_document",
]

Row = Sequence["str | Styled"]
JSONPATH: Final = "jsonpath="
"""Prefix of the format whose rest is a template (``resolver.cli.jsonpath``)."""
_NEVER_FOLDED: Final = 2**31 - 1

_STYLES: Final[Mapping[str, str]] = {
    "head": "2",
    "container": "1;34",
    "link": "36",
    "mount": "1;35",
    "bad": "31",
    "warn": "33",
    "faint": "2",
}


class Styled(NamedTuple):
    """Text with a style: a key of ``_STYLES``; empty = no style."""

    text: str
    style: str


class Column(NamedTuple):
    """One column of a table."""

    name: str
    right: bool = False
    wide: bool = False
    """True if the column is printed with ``-o wide`` only."""


class Output:
    """Output of a verb. ``human`` is True if the output is for people, in human units.

    The argument ``format`` is ``table``, ``wide``, ``json``, ``yaml``, ``name``,
    ``jsonpath=TEMPLATE`` or another format of the verb; empty (none was given) means ``table``. The
    attribute ``format`` is ``table`` for ``wide``, and ``json`` for ``jsonpath``, since verbs treat
    them alike.
    """

    def __init__(
        self,
        format: str = "",
        *,
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._stdout = sys.stdout if stdout is None else stdout
        self._stderr = sys.stderr if stderr is None else stderr
        environ = os.environ if environ is None else environ
        self._template = read_template(format)
        self.wide = format == "wide"
        self.format = "json" if self._template else "table" if self.wide else format or "table"
        self.terminal = self._stdout.isatty()
        self.human = self.terminal or format in {"table", "wide"}
        wanted = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._colour = self.terminal and wanted
        self._colour_errors = self._stderr.isatty() and wanted
        self._yaml_begun = False

    @property
    def structured(self) -> bool:
        """True if the format is JSON or YAML, which print records."""
        return self.format in {"json", "yaml"}

    def line(self, *parts: str | Styled) -> None:
        """Prints one line of data: the parts, one after another."""
        self._stdout.write("".join(map(self._paint, parts)) + "\n")

    def lines(self, lines: Iterable[str | Styled]) -> None:
        """Prints lines of data."""
        for text in lines:
            self.line(text)

    def cells(self, cells: Row) -> None:
        """Prints one tab-separated line, for ``cut`` and ``awk``."""
        self._stdout.write("\t".join(printable(_text(cell)) for cell in cells) + "\n")

    def _paint(self, text: str | Styled) -> str:
        """Returns the text in printable form; coloured if colours are used."""
        if isinstance(text, str):
            return printable(text)
        return _coloured(printable(text.text), text.style if self._colour else "")

    def record(self, thing: Message | Mapping[str, Any]) -> None:
        """Prints one object: as JSON on one line, as a YAML document, or as a line with the values
        that the template selects; no line if it selects none.

        Raises:
            InvalidArgument: the encoding of stdout lacks a character of a selected value.
        """
        value = thing if isinstance(thing, Mapping) else plain(thing)
        if self._template:
            text = self._template.render(value)
            self._refuse_unencodable(text)
            self._stdout.write(text if not text or text.endswith("\n") else f"{text}\n")
            return
        if self.format == "json":
            import json

            self._stdout.write(json.dumps(value) + "\n")  # ASCII: other characters are escaped
            return
        if self._yaml_begun:
            self._stdout.write("---\n")
        self._yaml_begun = True
        self._stdout.write(yaml_document(value, getattr(self._stdout, "encoding", None) or "utf-8"))

    def _refuse_unencodable(self, text: str) -> None:
        """Raises ``InvalidArgument`` if stdout's encoding lacks a character of a text: programs
        read the values that a template selects, and an escape would change them.
        """
        encoding = getattr(self._stdout, "encoding", None) or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError as error:
            raise InvalidArgument(
                f"the encoding of stdout, {encoding}, does not have "
                f"{text[error.start : error.end]!a}: "
                f"set PYTHONIOENCODING=utf-8, or use -o json, which escapes it"
            ) from None

    def flush(self) -> None:
        """Flushes stdout, so that slow output is shown at once."""
        self._stdout.flush()

    def note(self, text: str, style: str = "") -> None:
        """Prints one line that is not data, on stderr."""
        # Data first: on a terminal the two streams are mixed.
        self._stdout.flush()
        text = _coloured(printable(text), style if self._colour_errors else "")
        self._stderr.write(text + "\n")
        self._stderr.flush()


def read_template(format: str) -> Template | None:
    """Returns the template of ``jsonpath=TEMPLATE``; None for any other format.

    Raises:
        JsonPathError: the template is invalid.
    """
    if not format.startswith(JSONPATH):
        return None
    from resolver.cli.jsonpath import Template

    return Template.parse(format.removeprefix(JSONPATH))


def complain(*lines: str) -> None:
    """Prints lines on stderr if there is no ``Output``: an error and hints."""
    sys.stdout.flush()
    sys.stderr.writelines(f"{printable(text)}\n" for text in lines)


def offer(part: str, meaning: str = "") -> None:
    """Prints a candidate for a shell's completion, with its description if it has one."""
    sys.stdout.write("\t".join(map(printable, (part, meaning) if meaning else (part,))) + "\n")


def _coloured(text: str, style: str) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style else text


class Table:
    """Table whose rows are printed as they are received; a column may become wider with later rows.

    A row has a cell for each column; cells of wide columns are printed with ``-o wide`` only.
    """

    def __init__(self, output: Output, columns: Sequence[Column], *, header: bool = True) -> None:
        self._output = output
        self._shown = [at for at, one in enumerate(columns) if output.wide or not one.wide]
        self._columns = [columns[at] for at in self._shown]
        self._widths = [len(column.name) for column in self._columns]
        self._begun = not header

    def rows(self, rows: Sequence[Row]) -> None:
        """Prints some rows, aligned with each other and, where possible, with earlier rows."""
        rows = [[row[at] for at in self._shown] for row in rows]
        if not self._output.human:
            for row in rows:
                self._output.cells(row)
            return
        rows = [[_cleaned(cell) for cell in row] for row in rows]
        for row in rows:
            for at, cell in enumerate(row):
                self._widths[at] = max(self._widths[at], len(_text(cell)))
        if not self._begun and rows:
            self._begun = True
            self._print([Styled(column.name, "head") for column in self._columns])
        for row in rows:
            self._print(row)

    def _print(self, row: Row) -> None:
        parts: list[str | Styled] = []
        for cell, column, width in zip(row, self._columns, self._widths, strict=True):
            blanks = " " * (width - len(_text(cell)))
            parts += [blanks, cell, "  "] if column.right else [cell, blanks, "  "]
        while parts and not _text(parts[-1]).strip():
            parts.pop()
        self._output.line(*parts)


def _cleaned(cell: str | Styled) -> str | Styled:
    """Returns a cell in printable form, from which its width is measured."""
    if isinstance(cell, str):
        return printable(cell).rstrip()
    return Styled(printable(cell.text), cell.style)


def _text(cell: str | Styled) -> str:
    return cell if isinstance(cell, str) else cell.text


def yaml_document(value: Mapping[str, Any], encoding: str = "utf-8") -> str:
    """Returns JSON values as one block-style YAML document, without a document marker. Characters
    that the encoding lacks are escaped.
    """
    import yaml

    def dump(*, allow_unicode: bool) -> str:
        return yaml.dump(
            value,
            Dumper=_yaml_dumper(),
            allow_unicode=allow_unicode,
            sort_keys=False,
            width=_NEVER_FOLDED,
        )

    text: str = dump(allow_unicode=True)
    # PyYAML does not escape direction marks, so the text is checked here.
    is_shown = text.replace("\n", "").isprintable()
    is_encoded = text.encode(encoding, "replace").decode(encoding) == text
    return text if is_shown and is_encoded else dump(allow_unicode=False)


@cache
def _yaml_dumper() -> Any:
    import re

    import yaml

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, _data: object) -> bool:
            return True  # a repeated value is written again, without anchor and alias

    # PyYAML quotes only texts that are numbers in YAML 1.1; these are numbers in YAML 1.2.
    number = re.compile(r"(?:[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?|0o[0-7]+)$")
    Dumper.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Dumper
