"""Log lines say what they are about, and nothing that a caller sends can pass for one."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from directory.api.rpc.call_context import CURRENT, Call
from directory.server.logs import (
    JsonFormatter,
    LogFormatter,
    TextFormatter,
    cluster_log_context,
    with_log_context,
)
from resolver.redaction import redacted

FORGED = "/la/x\r\n2026-11-21T00:00:00.000Z ERROR directory: all is lost\x1b[2J\u2028\u202e\udc80"
LINE = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ \S+")


class Log:
    """A logger of its own that writes in one form."""

    def __init__(self, form: LogFormatter) -> None:
        self.form = form
        self.stream = io.StringIO()
        # Of its own: what other tests log, or set, is nothing to this one.
        self.logger = logging.Logger("directory.test")  # noqa: LOG001
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(form)
        self.logger.addHandler(handler)

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def as_text() -> Log:
    return Log(TextFormatter())


@pytest.fixture
def as_json() -> Log:
    return Log(JsonFormatter())


@pytest.fixture
def in_call() -> Iterator[Call]:
    metadata = (("x-request-id", "mine-1"),)
    call = Call(0.0, principal="User:ann", find_peer=lambda: "ipv4:127.0.0.1:1", metadata=lambda: metadata)  # fmt: skip  # noqa: E501
    CURRENT.call = call
    yield call
    CURRENT.call = None


def test_a_line_of_text_begins_with_the_time_in_utc(as_text: Log) -> None:
    as_text.logger.warning("the store is %s", "away")
    assert LINE.match(as_text.text)
    assert as_text.text.endswith(" WARNING directory.test: the store is away\n")


def test_a_line_of_json_is_one_object_with_what_it_is_about(as_json: Log, in_call: Call) -> None:
    as_json.form.servers["la"] = "la-1"
    as_json.logger.info("done", extra={"facts": {"code": "OK", "seconds": 0.25}})
    (line,) = as_json.objects
    assert list(line)[:4] == ["time", "level", "logger", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "INFO",
        "logger": "directory.test",
        "message": "done",
        "cluster": "la",
        "server": "la-1",
        "request_id": "mine-1",
        "principal": "User:ann",
        "peer": "ipv4:127.0.0.1:1",
        "code": "OK",
        "seconds": 0.25,
    }


def test_outside_a_call_nothing_of_one_is_logged(as_json: Log) -> None:
    as_json.logger.info("loaded")
    assert set(as_json.objects[0]) == {"time", "level", "logger", "message"}


def test_text_has_the_request_id_in_brackets(as_text: Log, in_call: Call) -> None:
    as_text.logger.info("refused")
    assert as_text.text.endswith(" INFO directory.test [mine-1]: refused\n")


def test_nothing_that_is_sent_begins_a_line_or_moves_a_terminals_cursor(
    as_text: Log, as_json: Log
) -> None:
    for log in (as_text, as_json):
        log.logger.info("no such path: %s", FORGED)
        assert log.text.count("\n") == 1
        assert log.text.rstrip("\n").isprintable()
    assert as_json.objects[0]["message"] == f"no such path: {FORGED}"


def test_a_stack_belongs_to_its_line_whatever_its_message_says(as_text: Log, as_json: Log) -> None:
    for log in (as_text, as_json):
        try:
            raise RuntimeError(FORGED)
        except RuntimeError:
            log.logger.exception("failed by a bug")
    first, *rest = as_text.text.splitlines()
    assert first.endswith("failed by a bug")
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)
    assert not any(LINE.match(line) for line in rest)
    (line,) = as_json.objects
    assert "RuntimeError" in line["stack"]
    assert "test_logs.py" in line["stack"]


def test_a_fact_of_a_line_cannot_take_another_ones_name(as_json: Log, in_call: Call) -> None:
    as_json.logger.info("x", extra={"facts": {"level": "ERROR", "request_id": "theirs"}})
    assert as_json.objects[0]["level"] == "INFO"
    assert as_json.objects[0]["request_id"] == "mine-1"


def test_an_endless_message_ends(as_json: Log) -> None:
    as_json.logger.info("x" * 1_000_000)
    assert len(as_json.text) < 10_000


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("etcd://root:s3cr3t@a:2379,b:2379/la", "etcd://root:***@a:2379,b:2379/la"),
        ("etcd://a:2379/la and http://:pw@h", "etcd://a:2379/la and http://:***@h"),
        ("etcd://la:my pw@a:2379/la", "etcd://la:***@a:2379/la"),
        ("etcd://my la:s3cret@h/la", "etcd://my la:***@h/la"),
        ("etcd://la: s3cret@h/la", "etcd://la:***@h/la"),
        ("etcd://la:12345 s3cret@h/la", "etcd://la:***@h/la"),
        ("etcd://a:2379/la: not for ana@b", "etcd://a:2379/la: not for ana@b"),
        ("etcds://la:p@ssw0rd@a/la?x=@", "etcds://la:***@a/la?x=@"),
        ("found 'etcd://la:it's@a'", "found 'etcd://la:***@a'"),
        ("etcd://la:12345@a:2379", "etcd://la:***@a:2379"),
        ("http://a:2379: not for ana@b", "http://a:2379: not for ana@b"),
        ("http://a:2379 not for ana@b", "http://a:2379 not for ana@b"),
        ("http://a: not for ana@b", "http://a: not for ana@b"),
        ("http://[::1]:2379/la of ana@b", "http://[::1]:2379/la of ana@b"),
        ("authorization: Bearer eyJhbGciOi.J9.x-y_z", "authorization: Bearer ***"),
        ("store sqlite:////var/lib/la.sqlite", "store sqlite:////var/lib/la.sqlite"),
        ("a bearer of news", "a bearer of news"),
        ("ipv4:127.0.0.1:1@x", "ipv4:127.0.0.1:1@x"),
    ],
)
def test_passwords_and_tokens_are_not_written(
    as_text: Log, as_json: Log, text: str, safe: str
) -> None:
    assert redacted(text) == safe
    for log in (as_text, as_json):
        log.logger.info("%s", text)
        assert safe in log.text


def test_a_password_in_a_stack_is_not_written(as_text: Log, as_json: Log) -> None:
    for log in (as_text, as_json):
        try:
            raise ValueError("cannot reach etcd://root:s3cr3t@a:2379")
        except ValueError:
            log.logger.exception("x")
        assert "s3cr3t" not in log.text


def test_of_several_clusters_each_thread_names_its_own(as_json: Log, as_text: Log) -> None:
    for log in (as_json, as_text):
        log.form.servers.update(la="la-1", ny="ny-1")
        log.logger.info("about none")
        for cluster in ("la", "ny"):
            with cluster_log_context(cluster):
                thread = threading.Thread(
                    target=with_log_context(lambda: log.logger.info("about one"))  # noqa: B023
                )
            thread.start()
            thread.join()
    reported = [(line.get("cluster"), line.get("server")) for line in as_json.objects]
    assert reported == [(None, None), ("la", "la-1"), ("ny", "ny-1")]
    assert [line.split(": ")[0].split(" ")[2:] for line in as_text.text.splitlines()] == [
        ["directory.test"],
        ["directory.test", "la"],
        ["directory.test", "ny"],
    ]


def test_a_call_that_is_about_a_cluster_says_so(as_json: Log, in_call: Call) -> None:
    as_json.form.servers.update(la="la-1", ny="ny-1")
    in_call.cluster = "ny"
    as_json.logger.info("x")
    assert as_json.objects[0]["server"] == "ny-1"
