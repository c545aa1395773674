r"""Templates of ``-o jsonpath=``: what kubectl's users write, and errors with their place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resolver.cli.jsonpath import JsonPathError, Template

OBJECT: dict[str, Any] = {
    "path": "/la/orders",
    "topic": {
        "partitions": 24,
        "adopted": True,
        "observed_config": {"retention.ms": "604800000", "cleanup.policy": "delete"},
    },
    "listeners": [
        {"name": "internal", "bootstrap_servers": ["la-1:9093", "la-2:9093"], "weight": 1},
        {"name": "edge", "bootstrap_servers": ["kafka:9094"], "weight": 2.5},
    ],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{.path}", "/la/orders"),
        (".path", "/la/orders"),
        ("path", "/la/orders"),
        ("{$.path}", "/la/orders"),
        ("{ .path }", "/la/orders"),
        (r"""{.path}{'\t'}{.topic.partitions}{"\n"}""", "/la/orders\t24\n"),
        ("{.path} has {.topic.partitions}!", "/la/orders has 24!"),
        ("{.topic.adopted}", "true"),
        (r"{.topic.observed_config.retention\.ms}", "604800000"),
        ("{.topic.observed_config['retention.ms']}", "604800000"),
        ("{.topic.observed_config['retention.ms', 'cleanup.policy']}", "604800000 delete"),
        ("{.topic.observed_config}", '{"retention.ms": "604800000", "cleanup.policy": "delete"}'),
        ("{.topic.observed_config.*}", "604800000 delete"),
        ("{.listeners[*].name}", "internal edge"),
        ("{.listeners.*.name}", "internal edge"),
        ("{..name}", "internal edge"),
        ("{..bootstrap_servers[0]}", "la-1:9093 kafka:9094"),
        ("{.listeners[0].bootstrap_servers}", '["la-1:9093", "la-2:9093"]'),
        ("{.listeners[-1].name}", "edge"),
        ("{.listeners[1,0].name}", "edge internal"),
        ("{.listeners[0:1].name}", "internal"),
        ("{.listeners[-1:].name}", "edge"),
        ("{.listeners[::2].name}", "internal"),
        ("{.listeners[7].name}", ""),
        ('{.listeners[?(@.name=="edge")].bootstrap_servers[0]}', "kafka:9094"),
        ("{.listeners[?(@.weight > 1)].name}", "edge"),
        ("{.listeners[?(@.weight<=1)].name}", "internal"),
        ("{.listeners[?(@.name!='edge')].name}", "internal"),
        ("{.listeners[?(@.name>1)].name}", ""),
        ("{.listeners[?(@.weight)].name}", "internal edge"),
        ("{.listeners[?(@.nothing)].name}", ""),
        ("{.listeners[0].bootstrap_servers[?(@=='la-2:9093')]}", "la-2:9093"),
        ("{range .listeners[*]}{.name}={.weight};{end}.", "internal=1;edge=2.5;."),
        (
            "{range .listeners[*]}{range .bootstrap_servers[*]}{$.path} {@},{end}{end}",
            "/la/orders la-1:9093,/la/orders la-2:9093,/la/orders kafka:9094,",
        ),
        ("{.nothing}", ""),
        ("{.path.nothing[0]}", ""),
        ("{'a text }'}", "a text }"),
    ],
)
def test_what_a_template_selects(template: str, text: str) -> None:
    assert Template.parse(template).render(OBJECT) == text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "at character 1: a path was expected, such as .path, found the end"),
        ("{}", "at character 2: a path was expected, such as .path, found '}'"),
        ("{.a", "at character 4: } was expected, found the end"),
        ("x{.a}{", "at character 7: a path was expected, such as .path, found the end"),
        ("{.a..}", "at character 6: a name was expected, found '}'"),
        ("{.a.}", "at character 5: a name was expected, found '}'"),
        ("{$a}", "at character 3: } was expected, found 'a'"),
        (".a b", "at character 3: a path was expected to end, found ' '"),
        ("{.a[x]}", "at character 5: a number, a quoted name, * or ?( was expected, found 'x'"),
        ("{.a['x]}", "at character 5: this quote is not closed"),
        ("{.a[1:2:0]}", "at character 6: the step of a slice is 1 or more"),
        ("{.a[-]}", "at character 5: a smaller number was expected"),
        ("{.a[1}", "at character 6: ] was expected, found '}'"),
        ("{.a[?@.b]}", "at character 6: ( was expected, found '@'"),
        (
            "{.a[?(@.b==x)]}",
            "at character 12: @.name, a quoted text, a number, true or false was expected",
        ),
        ("{.a[?(@.b=1)]}", "at character 10: ) was expected, found '='"),
        ("{end}", "at character 1: 'end' without a range before it"),
        ("{range .a[*]}{.b}", "at character 13: this range has no {end}"),
        ("{range .a}" * 40, "at character 321: more than 32 ranges in each other"),
        ("{.a" + "[?(@" * 40, "at character 133: at most 32 filters in each other were expected"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(template: str, message: str) -> None:
    with pytest.raises(JsonPathError) as caught:
        Template.parse(template)
    assert str(caught.value).startswith(message)


def test_a_value_acts_on_no_terminal_and_begins_no_line() -> None:
    value = {"owner": "a\x1b[31m\nroot"}
    assert Template.parse("{.owner}").render(value) == r"a\x1b[31m\nroot"


@given(st.text(alphabet="{}[]().,:?@$*'\"\\=<! ae0-9", max_size=30))
def test_any_text_is_a_template_or_an_error(text: str) -> None:
    try:
        shown = Template.parse(text).render({"a": [{"e": 0}], "e": "a"})
    except JsonPathError as error:
        shown = str(error)
    assert isinstance(shown, str)
