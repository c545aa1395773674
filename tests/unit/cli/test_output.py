"""How things are printed: tables, JSON lines, YAML, names."""

import io
import json
import math
from typing import Any

import pytest
import yaml
from google.protobuf import json_format, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from kdir.v1 import entry_pb2, policies_pb2, watch_pb2

from resolver import units
from resolver.cli.output import Column, Output, Styled, Table, yaml_document
from resolver.errors import InvalidArgument
from resolver.message_values import kafka_uuid, plain

BIG = 2**63 - 1

TOPIC = entry_pb2.Entry(
    path="/la/orders",
    entry_id=BIG,
    topic=entry_pb2.Topic(
        physical_name="orders",
        topic_id=bytes(range(240, 256)),
        partitions=24,
        provision=entry_pb2.PROVISION_ACTIVE,
        observed_config={"retention.ms": "1"},
    ),
    policies=policies_pb2.Policies(
        max_topics=BIG,
        read_only=False,
        tags={
            "team": policies_pb2.ConfigValue(value="x"),
            "old": policies_pb2.ConfigValue(cleared=True),
        },
    ),
    changed_at=timestamp_pb2.Timestamp(seconds=1_700_000_000, nanos=5_000_000),
)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _output(format: str = "", *, terminal: bool = False, **environ: str) -> tuple[Output, Any]:
    stream = _Terminal() if terminal else io.StringIO()
    return Output(format, stdout=stream, stderr=io.StringIO(), environ=environ), stream


def test_json_has_the_names_of_the_contract() -> None:
    value = plain(TOPIC)
    assert value["path"] == "/la/orders"
    assert value["topic"]["physical_name"] == "orders"
    assert value["topic"]["provision"] == "PROVISION_ACTIVE"
    assert value["topic"]["observed_config"] == {"retention.ms": "1"}
    assert value["policies"]["tags"] == {"old": {"cleared": True}, "team": {"value": "x"}}
    assert value["changed_at"] == "2023-11-14T22:13:20.005Z"


def test_ids_are_text_and_counts_are_numbers() -> None:
    value = plain(TOPIC)
    assert value["entry_id"] == str(BIG)
    assert value["policies"]["max_topics"] == BIG
    assert value["topic"]["partitions"] == 24


def test_what_is_unset_is_left_out_and_what_is_set_to_false_is_not() -> None:
    value = plain(TOPIC)
    assert "etag" not in value
    assert "owner" not in value["policies"]
    assert value["policies"]["read_only"] is False


def test_topic_ids_look_as_kafka_prints_them() -> None:
    # Kafka's Uuid is URL-safe base64 without padding: 22 characters of 16 bytes (KIP-516).
    shown = plain(TOPIC)["topic"]["topic_id"]
    assert shown == kafka_uuid(bytes(range(240, 256)))
    assert shown == "8PHy8_T19vf4-fr7_P3-_w"


def test_proto_json_reads_it_back() -> None:
    read = json_format.Parse(json.dumps(plain(TOPIC)), entry_pb2.Entry())
    assert read == TOPIC


def test_nested_messages_and_lists_are_read_back_too() -> None:
    event = watch_pb2.WatchResponse(
        events=[
            watch_pb2.ChangeEvent(path="/a", entry_id=5, after=TOPIC),
            watch_pb2.ChangeEvent(path="/b", revision=BIG),
        ],
        token="t",
    )
    assert json_format.Parse(json.dumps(plain(event)), watch_pb2.WatchResponse()) == event


def test_an_enum_value_of_a_newer_version_is_its_number() -> None:
    topic = entry_pb2.Topic.FromString(b"\x28\x63")  # field 5, provision = 99
    assert plain(topic) == {"provision": 99}


def test_one_object_is_one_line() -> None:
    output, stream = _output("json")
    output.record(TOPIC)
    output.record({"text": "two\nlines · é"})
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["path"] == "/la/orders"
    assert json.loads(lines[1]) == {"text": "two\nlines · é"}
    assert lines[1].isascii()  # no control or direction of somebody else reaches a terminal


def test_yaml_is_a_stream_of_documents() -> None:
    output, stream = _output("yaml")
    output.record(TOPIC)
    output.record({"a": 1})
    first, second = yaml.safe_load_all(stream.getvalue())
    assert first == plain(TOPIC)
    assert second == {"a": 1}


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(
        ["yes", "No", "~", "1e3", "0x1", "- a", "a: b", "#", "a #b", "2020-01-01", "="]
    )
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _VALUES))
def test_yaml_says_what_json_says(value: dict[str, Any]) -> None:
    assert yaml.safe_load(yaml_document(value)) == value


@pytest.mark.parametrize("text", ["1e7", "0o17", "1.5", ".5", "-3", "+1", "2E-3", "1:30", "yes"])
def test_text_like_a_number_is_quoted_for_readers_of_yaml_1_2(text: str) -> None:
    assert yaml_document({"a": text}) == f"a: '{text}'\n"


def test_yaml_is_readable_where_all_of_it_prints() -> None:
    same = ["long " * 40]
    text = yaml_document({"owner": "Jürgen", "a": same, "b": same, "n": 1.5, "i": 7})
    assert text == (
        f"owner: Jürgen\na:\n- '{'long ' * 40}'\nb:\n- '{'long ' * 40}'\nn: 1.5\ni: 7\n"
    )
    assert yaml_document({"owner": "a\u202eb"}).isascii()
    for encoding, is_ascii in (("ascii", True), ("latin-1", False)):
        text = yaml_document({"owner": "Jürgen"}, encoding)
        assert text.isascii() is is_ascii
        assert yaml.safe_load(text) == {"owner": "Jürgen"}


def test_a_table_of_a_terminal_is_aligned_under_a_header() -> None:
    output, stream = _output("table")
    table = Table(output, [Column("NAME"), Column("PARTS", right=True), Column("STATE")])
    table.rows([("orders", "24", "active"), ("x", "3", "")])
    table.rows([("a-longer-name", "1", "pending")])
    assert stream.getvalue().splitlines() == [
        "NAME    PARTS  STATE",
        "orders     24  active",
        "x           3",
        "a-longer-name      1  pending",
    ]


def test_elsewhere_a_table_is_tab_separated_without_a_header() -> None:
    output, stream = _output()
    Table(output, [Column("NAME"), Column("N", right=True)]).rows([("a", "1"), ("bc", "22")])
    assert stream.getvalue() == "a\t1\nbc\t22\n"


def test_an_empty_table_prints_nothing() -> None:
    output, stream = _output("table")
    Table(output, [Column("NAME")]).rows([])
    assert stream.getvalue() == ""


def test_colour_is_for_terminals_and_does_not_move_columns() -> None:
    output, stream = _output(terminal=True)
    table = Table(output, [Column("NAME"), Column("STATE")])
    table.rows([(Styled("a", "container"), "x"), ("bcd", "y")])
    lines = stream.getvalue().splitlines()
    assert "\x1b[" in lines[1]
    bare = [line.replace("\x1b[1;34m", "").replace("\x1b[0m", "") for line in lines[1:]]
    assert bare == ["a     x", "bcd   y"]


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colour_can_be_switched_off(environ: dict[str, str]) -> None:
    output, stream = _output(terminal=True, **environ)
    output.line(Styled("a", "bad"))
    assert stream.getvalue() == "a\n"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.0s"),
        (0.24, "0.2s"),
        (59, "59s"),
        (360, "6m"),
        (7200, "2h"),
        (3 * 86_400, "3d"),
        # What a server may send.
        (math.inf, "317y"),
        (-math.inf, "0.0s"),
        (math.nan, "0s"),
    ],
)
def test_ages(seconds: float, shown: str) -> None:
    assert units.age(seconds) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("604800000", "7d"),
        ("129600000", "36h"),
        ("90000", "90s"),
        ("1500", "1500ms"),
        ("0", "0"),
        ("-1", "forever"),
        ("what", "what"),
    ],
)
def test_retention(text: str, shown: str) -> None:
    assert units.retention(text) == shown


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_template_prints_a_value_as_it_is_or_not_at_all(encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    output = Output("jsonpath={.owner}", stdout=stream, stderr=io.StringIO())
    output.record({"owner": "ana"})
    for owner, encodings in (("Jürgen", {"latin-1", "utf-8"}), ("東京", {"utf-8"})):
        if encoding in encodings:
            output.record({"owner": owner})
        else:
            with pytest.raises(InvalidArgument, match=f"encoding of stdout, {encoding}, does not"):
                output.record({"owner": owner})
    output.flush()
    expected = {"ascii": "ana\n", "latin-1": "ana\nJürgen\n", "utf-8": "ana\nJürgen\n東京\n"}
    assert raw.getvalue().decode(encoding) == expected[encoding]
