"""What clients are made of is checked where a location is made of an answer."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kdir.v1 import entry_pb2, resolve_pb2

from directory.server.config import ConfigError, parse_config
from resolver.cli.resolve import property_value
from resolver.errors import Lame
from resolver.kafka.listener_choice import connection
from resolver.listeners import MECHANISMS, PROTOCOLS
from resolver.path import Path
from resolver.resolution.values import Answer, Sender
from resolver.testing import MemoryDirectory, MemoryTransport
from resolver.topic_location import TopicLocation, location_of
from tests.support.command_line import run

PATH = "/la/clicks"


def located(listener: entry_pb2.Listener, topic: str = "clicks") -> TopicLocation:
    authority = resolve_pb2.Authority(
        cluster=entry_pb2.Cluster(
            cluster_id="kc-la", cluster="la", mount="/la", listeners=[listener]
        )
    )
    entry = entry_pb2.Entry(path=PATH, topic=entry_pb2.Topic(physical_name=topic))
    resolution = resolve_pb2.Resolution(entry=entry)
    sender = Sender(
        cluster_id="kc-la",
        mount=Path.parse("/la"),
        cluster="la",
        epoch=1,
        server="la-1",
        incarnation="i",
        revision=1,
        stale=False,
        age_seconds=0.0,
        payload=authority,
    )
    return location_of(Answer(Path.parse(PATH), 60, resolution), sender)


def listener(**changed: Any) -> entry_pb2.Listener:
    fields = {
        "name": "internal",
        "bootstrap_servers": ["broker-1:9092", "[::1]:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
    }
    return entry_pb2.Listener(**(fields | changed))


def test_a_listener_is_taken() -> None:
    found = located(listener())
    assert found.bootstrap_servers == "broker-1:9092,[::1]:9093"
    assert connection(found)["sasl.mechanism"] == "SCRAM-SHA-512"
    assert located(listener(security_protocol="", sasl_mechanism="")).topic == "clicks"


LOGIN_MODULE = "SASL_SSL\nsasl.jaas.config=com.sun.security.auth.module.JndiLoginModule required;"


@pytest.mark.parametrize(
    ("changed", "field", "right"),
    [
        ({"security_protocol": LOGIN_MODULE}, "security_protocol", "one of PLAINTEXT"),
        ({"security_protocol": "sasl_ssl"}, "security_protocol", "one of PLAINTEXT"),
        ({"sasl_mechanism": "GSSAPI -X sasl.kerberos.kinit.cmd=x"}, "sasl_mechanism", "one of"),
        ({"sasl_mechanism": "PLAIN\n"}, "sasl_mechanism", "one of"),
        ({"bootstrap_servers": ["a:1 -X b=c"]}, "bootstrap_servers", "host:port"),
        ({"bootstrap_servers": ["a:1\nssl.engine.factory.class=x"]}, "bootstrap_servers", "host:"),
        ({"bootstrap_servers": ["a:1,b:2"]}, "bootstrap_servers", "host:port"),
        ({"bootstrap_servers": ["a:1"] * 1_001}, "bootstrap_servers", "1 to 1000"),
        ({"bootstrap_servers": []}, "bootstrap_servers", "1 to 1000"),
        ({"name": "a b"}, "name", "1 to 249"),
        ({"name": "\x1b[2J"}, "name", "1 to 249"),
    ],
)
def test_what_is_no_listener_is_refused(changed: dict[str, Any], field: str, right: str) -> None:
    with pytest.raises(Lame, match=right) as caught:
        located(listener(**changed))
    assert caught.value.metadata["field"] == f"listeners[0].{field}"
    assert f"listeners[0].{field}: found " in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("name", ["", ".", "a b", "a\nb", "$(reboot)", "x" * 250, "é"])
def test_a_topic_that_kafka_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(Lame, match=r"topic\.physical_name: found") as caught:
        located(listener(), name)
    assert caught.value.message.isprintable()


@given(
    st.fixed_dictionaries(
        {
            "name": st.text(max_size=5) | st.just("internal"),
            "bootstrap_servers": st.lists(st.text(max_size=8) | st.just("a:1"), max_size=3),
            "security_protocol": st.text(max_size=9) | st.sampled_from(PROTOCOLS),
            "sasl_mechanism": st.text(max_size=9) | st.sampled_from(MECHANISMS),
        }
    )
)
@example(
    {
        "name": "internal",
        "bootstrap_servers": ["a:1"],
        "security_protocol": LOGIN_MODULE,
        "sasl_mechanism": "",
    }
)
def test_whatever_a_server_says_is_no_more_than_its_settings(fields: dict[str, Any]) -> None:
    try:
        found = located(entry_pb2.Listener(**fields))
    except Lame:
        return
    settings = connection(found)
    assert settings.keys() <= {"bootstrap.servers", "security.protocol", "sasl.mechanism"}
    assert all(value.isprintable() and " " not in value for value in settings.values())


# -- as they are printed ---------------------------------------------------------------------------


def test_a_server_that_lies_gives_no_properties_and_no_arguments_for_a_shell() -> None:
    with MemoryDirectory() as honest:
        endpoint = honest.cluster("/la", "la", bootstrap_servers="broker:9092")
        honest.topic(PATH, "clicks")
        answer = honest.transport.handler(endpoint)

        def lie(name: str, request: Any) -> Any:
            response = answer(name, request)
            for authority in getattr(response, "authorities", None) or [response.authority]:
                authority.cluster.listeners[0].security_protocol = LOGIN_MODULE
            return response

        transport = MemoryTransport()
        transport.serve(endpoint, lie)
        for arguments in (
            ["resolve", "-o", "properties", PATH],
            ["resolve", "-o", "kcat", PATH],
            ["resolve", PATH],
            ["resolve", PATH, "/la/none"],
            ["which", "clicks"],
            ["trace", PATH],
        ):
            ran = run(["--at", endpoint, *arguments], transport)
            assert ran.code == 3
            assert "jaas" not in ran.out
            assert "security_protocol: found 'SASL_SSL\\\\nsasl.jaas.config" in ran.err or (
                "security_protocol: found 'SASL_SSL\\nsasl.jaas.config" in ran.err
            )


def test_values_of_properties_are_read_back_as_they_are() -> None:
    for text in ("a:1,b:2", " a", "a\\b", "a\nb=c", "é\u202e😀", "\t"):
        written = property_value(text)
        assert written.isascii()
        assert written.isprintable()
        assert loaded(written) == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_value_of_properties(text: str) -> None:
    assert loaded(property_value(text)) == text


def loaded(value: str) -> str:
    """Returns a value as ``java.util.Properties#load`` reads it, by its documentation."""
    units = bytearray()
    at = 0
    value = value.lstrip(" \t\f")
    while at < len(value):
        one = value[at]
        if one == "\\":
            at += 1
            one = value[at]
            if one == "u":
                units += bytes.fromhex(value[at + 1 : at + 5])
                at += 5
                continue
            one = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(one, one)
        units += one.encode("utf-16-be")
        at += 1
    return units.decode("utf-16-be")


def test_arguments_for_kcat_are_quoted_for_a_shell() -> None:
    with MemoryDirectory() as tree:
        endpoint = tree.cluster("/la", "la", bootstrap_servers="[::1]:9092,b:1")
        tree.topic(PATH, "clicks")
        ran = run(["--at", endpoint, "resolve", "-o", "kcat", PATH], tree.transport)
    assert shlex.split(ran.out) == ["-b", "[::1]:9092,b:1", "-t", "clicks"]


# -- in a server's config --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kafka", "message"),
    [
        (
            {"listeners": {"a": {"protocol": "SASL_SSL", "mechanism": "PLAIN -X a=b"}}},
            r"kafka\.listeners\.a\.mechanism: found 'PLAIN -X a=b'; expected one of GSSAPI",
        ),
        (
            {"listeners": {"a": {"protocol": "SASL_SSL x=y"}}},
            r"kafka\.listeners\.a\.protocol: found 'SASL_SSL x=y'; expected one of PLAINTEXT",
        ),
        (
            {"listeners": {"a": {"protocol": "SASL_SSL\nx=y"}}},
            r"kafka\.listeners\.a\.protocol: found 'SASL_SSL\\nx=y'; expected one line of",
        ),
        (
            {"listeners": {"a": {"bootstrap": ["a b:1"]}}},
            r"kafka\.listeners\.a\.bootstrap: found 'a b:1'; expected host:port",
        ),
        ({"listeners": {"a\tb": {}}}, r"kafka\.listeners\.a\\tb: found 'a\\tb'; expected 1 to 249"),
        ({"bootstrap": ["a b:1"]}, r"kafka\.bootstrap: found 'a b:1'; expected host:port"),
        (
            {"bootstrap": ["a\x1b:1"]},
            r"kafka\.bootstrap: found 'a\\x1b:1'; expected one line of",
        ),
    ],
)
def test_a_config_names_listeners_that_clients_take(kafka: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config({"kafka": {"bootstrap": ["broker:9092"]} | kafka})
