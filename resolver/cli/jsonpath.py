r"""Templates of ``-o jsonpath=``, in the dialect of kubectl.

A template is text with expressions in braces. An expression is a path (``.topic.partitions``,
``['retention.ms']``, ``.retention\.ms``, ``[0]``, ``[-1]``, ``[1:3]``, ``[0,2]``, ``[*]``, ``.*``,
``..name``, ``[?(@.partitions>=12)]``), a quoted text (``{"\n"}``), or ``range PATH``, which repeats
the text up to its ``end`` for each value. Several values are printed with a blank between them,
objects and arrays as JSON; missing values are left out. A template without braces is one path.

Libraries for JSONPath implement RFC 9535, which has no templates and no ``range``.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from resolver.printable import printable

__all__ = ["JsonPathError", "Template"]

_MOST_NESTED: Final = 32
"""Most levels of nested ranges, and of nested filters."""
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
_NAME_ENDS: Final = frozenset(" .[]{}(),=!<>\t")
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}


class JsonPathError(ValueError):
    """Error of an invalid template; ``at`` is the position in it, counted from 1."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(f"at character {at + 1}: {message}")
        self.at = at + 1


class _Names(NamedTuple):
    names: tuple[str, ...]


class _Items(NamedTuple):
    items: tuple[int | slice, ...]


class _Every(NamedTuple):
    """Step to all values of an object or an array."""


class _Below(NamedTuple):
    """Step to the value itself and all values in it, at any depth."""


class _Filter(NamedTuple):
    left: _Path | _Literal
    comparison: str
    right: _Path | _Literal | None


class _Path(NamedTuple):
    is_absolute: bool
    """True if the path begins at the whole object, not at the current value of a range or a
    filter.
    """
    steps: tuple[_Names | _Items | _Every | _Below | _Filter, ...]


class _Literal(NamedTuple):
    value: Any


class _Range(NamedTuple):
    path: _Path
    parts: tuple[_Part, ...]


_Part = str | _Path | _Range


class Template(NamedTuple):
    """Parsed template."""

    parts: tuple[_Part, ...]

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parses a template.

        Raises:
            JsonPathError: the template is invalid; the message has the position.
        """
        if "{" not in text:
            return cls((_Reader(text).bare_path(),))
        return cls(_Reader(text).parts(nested=0))

    def render(self, value: Any) -> str:
        """Returns the text for one object of JSON values. Unprintable characters of values are
        escaped; the template's own text stays as written.
        """
        return "".join(_rendered(self.parts, value, value))


# -- reading -------------------------------------------------------------------------------------


class _Reader:
    """Parser of one template."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def bare_path(self) -> _Path:
        """Reads a path without braces."""
        path = self._path(nested=0)
        if self._at < len(self._text):
            raise self._unexpected("a path was expected to end")
        return path

    def parts(self, *, nested: int) -> tuple[_Part, ...]:
        """Reads parts up to the end of the text; inside a range, up to its ``{end}``."""
        parts: list[_Part] = []
        begin = self._at
        while self._at < len(self._text):
            brace = self._text.find("{", self._at)
            brace = len(self._text) if brace < 0 else brace
            if brace > self._at:
                parts.append(self._text[self._at : brace])
            if brace == len(self._text):
                self._at = brace
                break
            self._at = brace + 1
            self._blanks()
            if self._keyword("end"):
                if not nested:
                    raise JsonPathError("'end' without a range before it", brace)
                self._close()
                return tuple(parts)
            parts.append(self._expression(nested, brace))
        if nested:
            raise JsonPathError("this range has no {end}", begin - 1)
        return tuple(parts)

    def _expression(self, nested: int, brace: int) -> _Part:
        if self._peek() in {'"', "'"}:
            text = self._quoted()
            self._close()
            return text
        if not self._keyword("range"):
            path = self._path(nested=0)
            self._close()
            return path
        if nested >= _MOST_NESTED:
            raise JsonPathError(f"more than {_MOST_NESTED} ranges in each other", brace)
        self._blanks()
        path = self._path(nested=0)
        self._close()
        return _Range(path, self.parts(nested=nested + 1))

    def _keyword(self, keyword: str) -> bool:
        """Reads a keyword and returns True, if it is next and a blank or ``}`` follows it; else
        returns False.
        """
        end = self._at + len(keyword)
        if self._text[self._at : end] != keyword or self._text[end : end + 1] not in {
            " ",
            "}",
            "\t",
        }:
            return False
        self._at = end
        return True

    def _close(self) -> None:
        self._blanks()
        self._expect("}")

    def _path(self, *, nested: int) -> _Path:
        begin, is_absolute = self._at, False
        if self._peek() in {"$", "@"}:
            is_absolute = self._next() == "$"
            begin = -1
        steps: list[Any] = []
        while True:
            if self._text.startswith("..", self._at):
                self._at += 2
                steps.append(_Below())
                if self._peek() != "[":
                    steps.append(self._name())
            elif self._peek() == ".":
                self._at += 1
                alone = not steps and self._peek() in {"", "}", " ", ")"}  # the value itself
                if not alone and self._peek() != "[":
                    steps.append(self._name())
            elif self._peek() == "[":
                steps.append(self._bracket(nested))
            elif self._at == begin and self._peek() not in {"", "}"}:
                steps.append(self._name())  # a path may begin without a dot
            elif self._at == begin:
                raise self._unexpected("a path was expected, such as .path")
            else:
                return _Path(is_absolute, tuple(steps))

    def _name(self) -> _Names | _Every:
        if self._peek() == "*":
            self._at += 1
            return _Every()
        name = ""
        while (one := self._peek()) and one not in _NAME_ENDS:
            self._at += 1
            name += self._next() if one == "\\" else one
        if not name:
            raise self._unexpected("a name was expected")
        return _Names((name,))

    def _bracket(self, nested: int) -> _Names | _Items | _Every | _Filter:
        self._expect("[")
        self._blanks()
        found: _Names | _Items | _Every | _Filter
        if self._peek() == "*":
            self._at += 1
            found = _Every()
        elif self._peek() == "?":
            found = self._filter(nested)
        elif self._peek() in {'"', "'"}:
            found = _Names(tuple(self._listed(self._quoted)))
        else:
            found = _Items(tuple(self._listed(self._item)))
        self._blanks()
        self._expect("]")
        return found

    def _listed(self, read: Callable[[], Any]) -> Iterator[Any]:
        yield read()
        self._blanks()
        while self._peek() == ",":
            self._at += 1
            self._blanks()
            yield read()
            self._blanks()

    def _item(self) -> int | slice:
        bounds = [self._integer()]
        begin = self._at
        while self._peek() == ":" and len(bounds) < 3:
            self._at += 1
            bounds.append(self._integer())
        if len(bounds) > 1:
            if len(bounds) == 3 and bounds[2] is not None and bounds[2] < 1:
                raise JsonPathError("the step of a slice is 1 or more", begin)
            return slice(*bounds)
        if bounds[0] is None:
            raise self._unexpected("a number, a quoted name, * or ?( was expected")
        return bounds[0]

    def _integer(self) -> int | None:
        begin = self._at
        if self._peek() == "-":
            self._at += 1
        while self._peek().isascii() and self._peek().isdigit():
            self._at += 1
        text = self._text[begin : self._at]
        if len(text) > 18 or text == "-":
            raise JsonPathError("a smaller number was expected", begin)
        return int(text) if text else None

    def _filter(self, nested: int) -> _Filter:
        if nested >= _MOST_NESTED:
            raise self._unexpected(f"at most {_MOST_NESTED} filters in each other were expected")
        self._expect("?")
        self._expect("(")
        left = self._operand(nested)
        comparison = next((one for one in _COMPARISONS if self._text.startswith(one, self._at)), "")
        right = None
        if comparison:
            self._at += len(comparison)
            right = self._operand(nested)
        self._expect(")")
        return _Filter(left, comparison, right)

    def _operand(self, nested: int) -> _Path | _Literal:
        self._blanks()
        found: _Path | _Literal
        begin = self._at
        if self._peek() in {'"', "'"}:
            found = _Literal(self._quoted())
        elif self._peek() in {"@", "$"}:
            found = self._path(nested=nested + 1)
        else:
            while (one := self._peek()) and one not in " )=!<>":
                self._at += 1
            found = _Literal(self._literal(self._text[begin : self._at], begin))
        self._blanks()
        return found

    def _literal(self, text: str, begin: int) -> Any:
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        try:
            return float(text) if any(one in text for one in ".eE") else int(text)
        except ValueError:
            raise JsonPathError(
                "@.name, a quoted text, a number, true or false was expected", begin
            ) from None

    def _quoted(self) -> str:
        begin, quote, text = self._at, self._next(), ""
        while (one := self._next()) != quote:
            if not one:
                raise JsonPathError("this quote is not closed", begin)
            if one == "\\":
                one = self._next()
                one = _ESCAPES.get(one, one)
            text += one
        return text

    def _blanks(self) -> None:
        while self._peek() in {" ", "\t"}:
            self._at += 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        one = self._peek()
        self._at += len(one)
        return one

    def _expect(self, one: str) -> None:
        if self._peek() != one:
            raise self._unexpected(f"{one} was expected")
        self._at += 1

    def _unexpected(self, wanted: str) -> JsonPathError:
        found = self._peek()
        return JsonPathError(f"{wanted}, found {repr(found) if found else 'the end'}", self._at)


# -- evaluating ----------------------------------------------------------------------------------


def _rendered(parts: Sequence[_Part], root: Any, current: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, _Range):
            for value in _selected(part.path, root, current):
                yield from _rendered(part.parts, root, value)
        else:
            yield " ".join(map(_text, _selected(part, root, current)))


def _text(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value))


def _selected(path: _Path, root: Any, current: Any) -> list[Any]:
    values = [root if path.is_absolute else current]
    for step in path.steps:
        values = [found for value in values for found in _stepped(step, root, value)]
    return values


def _stepped(
    step: _Names | _Items | _Every | _Below | _Filter, root: Any, value: Any
) -> Iterator[Any]:
    match step:
        case _Names(names) if isinstance(value, Mapping):
            yield from (value[name] for name in names if name in value)
        case _Items(items) if isinstance(value, list | tuple):
            for item in items:
                if isinstance(item, slice):
                    yield from value[item]
                elif -len(value) <= item < len(value):
                    yield value[item]
        case _Every():
            yield from _values(value)
        case _Below():
            yield from _below(value)
        case _Filter():
            yield from (one for one in _values(value) if _keeps(step, root, one))
        case _:
            return


def _values(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list | tuple) else ()


def _below(value: Any) -> Iterator[Any]:
    yield value
    for one in _values(value):
        yield from _below(one)


def _keeps(condition: _Filter, root: Any, value: Any) -> bool:
    left = _operands(condition.left, root, value)
    if condition.right is None:
        return bool(left)
    compare = _COMPARISONS[condition.comparison]
    right = _operands(condition.right, root, value)
    return any(
        _comparable(condition.comparison, a, b) and compare(a, b) for a in left for b in right
    )


def _operands(operand: _Path | _Literal, root: Any, value: Any) -> list[Any]:
    return [operand.value] if isinstance(operand, _Literal) else _selected(operand, root, value)


def _comparable(comparison: str, left: Any, right: Any) -> bool:
    """True if the comparison is defined for these values: equality for all types, order only for
    two texts or two numbers.
    """
    if comparison in {"==", "!="}:
        return True
    numbers = (int, float)
    return (isinstance(left, str) and isinstance(right, str)) or (
        isinstance(left, numbers) and isinstance(right, numbers)
    )
