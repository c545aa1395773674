"""Printing: tables, JSON lines, YAML and names; refuses to know what the things printed mean.

Data goes to stdout, everything else to stderr. A table has a header, aligned columns and human
units on a terminal, or where ``-o table`` asks for it; elsewhere it is tab-separated lines of exact
values, without a header, for ``cut`` and ``awk``.

All text that a verb prints passes here, and what does not print in it is escaped
(``resolver.printable``): names, owners and messages are other people's, and none of them may act on
a terminal or begin a line or a column of its own. The only escapes that reach a terminal are the
colours that are made here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from resolver.printable import printable

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

__all__ = [
    "Column",
    "Output",
    "Styled",
    "Table",
    "complain",
    "kafka_uuid",
    "offer",
    "plain",
    "yaml_lines",
]

Row = Sequence["str | Styled"]

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
    """Text that means something; ``style`` is a key of ``_STYLES``, or "" for none."""

    text: str
    style: str


class Column(NamedTuple):
    """One column of a table."""

    name: str
    right: bool = False


class Output:
    """Where a verb prints. ``human`` says whether people read it: then units are human ones.

    ``format`` is one of ``table``, ``json``, ``yaml``, ``name`` (and what else the verb has); ""
    was not asked for and means ``table``.
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
        self.format = format or "table"
        self.terminal = self._stdout.isatty()
        self.human = self.terminal or format == "table"
        wanted = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self._colour = self.terminal and wanted
        self._colour_errors = self._stderr.isatty() and wanted
        self._yaml_begun = False

    @property
    def structured(self) -> bool:
        """Whether ``record`` is how to print."""
        return self.format in {"json", "yaml"}

    def line(self, *parts: str | Styled) -> None:
        """Prints one line of data, of parts that follow each other."""
        self._stdout.write("".join(map(self._paint, parts)) + "\n")

    def lines(self, lines: Iterable[str | Styled]) -> None:
        """Prints lines of data."""
        for text in lines:
            self.line(text)

    def cells(self, cells: Row) -> None:
        """Prints one tab-separated line, for ``cut`` and ``awk``."""
        self._stdout.write("\t".join(printable(_text(cell)) for cell in cells) + "\n")

    def _paint(self, text: str | Styled) -> str:
        """Returns the text as it may be printed, in its colour where there are colours."""
        if isinstance(text, str):
            return printable(text)
        return _coloured(printable(text.text), text.style if self._colour else "")

    def record(self, thing: Message | Mapping[str, Any]) -> None:
        """One object as JSON on one line, or as a YAML document."""
        value = thing if isinstance(thing, Mapping) else plain(thing)
        if self.format == "json":
            import json

            self._stdout.write(json.dumps(value) + "\n")  # ASCII: all else is escaped
            return
        if self._yaml_begun:
            self._stdout.write("---\n")
        self._yaml_begun = True
        self.lines(yaml_lines(value))

    def flush(self) -> None:
        """Lets whoever reads see it now; for output that comes slowly."""
        self._stdout.flush()

    def note(self, text: str, style: str = "") -> None:
        """One line on stderr: what is not data."""
        # Data first: on a terminal the two streams meet in one place.
        self._stdout.flush()
        text = _coloured(printable(text), style if self._colour_errors else "")
        self._stderr.write(text + "\n")
        self._stderr.flush()

    def prompt(self, question: str) -> None:
        """Asks a person, who answers on the same line."""
        self._stdout.flush()
        self._stderr.write(f"{printable(question)} [y/N] ")
        self._stderr.flush()


def complain(*lines: str) -> None:
    """Prints lines on stderr where there is no ``Output``: what went wrong, and hints."""
    sys.stdout.flush()
    sys.stderr.writelines(f"{printable(text)}\n" for text in lines)


def offer(part: str, meaning: str = "") -> None:
    """Prints a word that a shell may complete to, with what it means where it is given."""
    sys.stdout.write("\t".join(map(printable, (part, meaning) if meaning else (part,))) + "\n")


def _coloured(text: str, style: str) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style else text


class Table:
    """Rows under one header, printed as they come: a column may grow wider from page to page."""

    def __init__(self, output: Output, columns: Sequence[Column], *, header: bool = True) -> None:
        self._output = output
        self._columns = columns
        self._widths = [len(column.name) for column in columns]
        self._begun = not header

    def rows(self, rows: Sequence[Row]) -> None:
        """Prints some rows, aligned with each other and as far as possible with those before."""
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
    """Returns a cell as it is printed: its width is that of what is seen."""
    if isinstance(cell, str):
        return printable(cell).rstrip()
    return Styled(printable(cell.text), cell.style)


def _text(cell: str | Styled) -> str:
    return cell if isinstance(cell, str) else cell.text


def kafka_uuid(raw: bytes) -> str:
    """Sixteen bytes as Kafka's own tools print them: URL-safe base64 without padding."""
    import binascii

    text = binascii.b2a_base64(raw, newline=False).decode("ascii")
    return text.rstrip("=").replace("+", "-").replace("/", "_")


def plain(message: Message) -> dict[str, Any]:
    """A message as JSON values, by the names of the contract.

    As proto JSON with three choices, all of which proto JSON's readers accept: names in
    snake_case; counts and revisions as numbers, while ids (``fixed64``) are text, since they do not
    fit a double; bytes in URL-safe base64 without padding, as Kafka prints topic ids. A field that
    is not set, and a number that is 0, is left out.
    """
    return {field.name: _field(field, value) for field, value in message.ListFields()}


def _field(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        values = field.message_type.fields_by_name["value"]
        return {str(key): _value(values, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_value(field, item) for item in value]
    return _value(field, value)


def _value(field: FieldDescriptor, value: Any) -> Any:
    kind = field.type
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Timestamp":
            return value.ToJsonString()
        return plain(value)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name  # a number of a newer version
    if kind == field.TYPE_BYTES:
        return kafka_uuid(value)
    if kind in (field.TYPE_FIXED64, field.TYPE_SFIXED64):
        return str(value)
    return value


def yaml_lines(value: Any, indent: int = 0) -> Iterable[str]:
    """JSON values as block-style YAML 1.2, without a document marker."""
    pad = "  " * indent
    match value:
        case dict() if value:
            for key, item in value.items():
                yield from _yaml_item(f"{pad}{_scalar(key)}:", item, indent)
        case list() | tuple() if value:
            for item in value:
                nested = isinstance(item, (dict, list, tuple)) and len(item) > 0
                inner = list(yaml_lines(item, indent + 1))
                # The first line of what is nested stands beside the dash.
                yield f"{pad}- {inner[0].lstrip()}" if nested else f"{pad}- {_scalar(item)}"
                yield from inner[1:]
        case _:
            yield f"{pad}{_scalar(value)}"


def _yaml_item(head: str, item: Any, indent: int) -> Iterable[str]:
    if isinstance(item, (dict, list, tuple)) and len(item) > 0:
        yield head
        yield from yaml_lines(item, indent + 1)
    else:
        yield f"{head} {_scalar(item)}"


_PLAIN_FIRST: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ/")
_PLAIN_REST: Final = _PLAIN_FIRST | frozenset("0123456789._-")
_NOT_STRINGS: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def _scalar(value: Any) -> str:
    if (
        isinstance(value, str)
        and value[:1] in _PLAIN_FIRST
        and _PLAIN_REST.issuperset(value)
        and value.lower() not in _NOT_STRINGS
    ):
        return value
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, float):
        return f"{value:.6f}"  # YAML 1.1 reads 1e-07 as text
    import json

    # Numbers, true, false, null, [] and {} are the same in both.
    return json.dumps(value)


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    # YAML takes no unprintable characters, not even quoted.
    return character if character.isprintable() else f"\\U{ord(character):08x}"
