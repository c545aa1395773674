"""Files, rows and texts of anybody: each reader gives what it read, or its own error, soon."""

from __future__ import annotations

import contextlib
import io
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kdir.v1 import admin_pb2

from directory.api.page_tokens import PageToken
from directory.maintenance.restore import Backup
from directory.namespace.command import CreateDirectory, CreateLink, CreateTopic
from directory.namespace.entry import ROOT_ID, Kind
from directory.namespace.keys import entry_key
from directory.namespace.lookup import lookup
from directory.namespace.snapshot import Snapshot
from directory.server.config import ConfigError, parse_config
from directory.store.base import IncompatibleStore, Put
from directory.store.event_rows import events_of, new_change_id
from directory.wire.entry_codec import ProtoCodec
from resolver.backup_file import BackupWriter, Checksum, DamagedBackup
from resolver.errors import InvalidArgument, InvalidPageToken, InvalidPath, InvalidToken
from resolver.glob import Glob
from resolver.path import Path
from resolver.revision_token import Token
from tests.support.hostile import Anything
from tests.support.trees import Cluster, path

SECONDS: Final = 20.0
"""No input takes so long, on any machine; what is not linear takes minutes."""
CODEC = ProtoCodec()
QUICK = settings(suppress_health_check=list(HealthCheck))


@contextmanager
def soon() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < SECONDS


@pytest.fixture
def times(request: pytest.FixtureRequest) -> int:
    """Returns how many inputs of one seed."""
    return 20_000 if request.config.getoption("--soak") else 300


# -- texts ---------------------------------------------------------------------------------------

READERS: list[tuple[Callable[[str], object], type[Exception]]] = [
    (Path.parse, InvalidPath),
    (Glob.parse, InvalidArgument),
    (Token.parse, InvalidToken),
    (lambda text: PageToken.parse(text, "list", "/la"), InvalidPageToken),
]


@pytest.mark.parametrize(("read", "error"), READERS)
@QUICK
@given(text=st.one_of(st.text(max_size=80), st.text("ab/*?[]-!.", max_size=1_200)))
def test_any_text_is_read_or_refused(
    read: Callable[[str], object], error: type[Exception], text: str
) -> None:
    with soon(), contextlib.suppress(error):
        read(text)


@QUICK
@given(
    pattern=st.text("ab*?[]-!/", min_size=1, max_size=1_000),
    names=st.lists(st.text("ab", min_size=1, max_size=249), min_size=1, max_size=64),
)
def test_any_glob_is_matched_soon(pattern: str, names: list[str]) -> None:
    with contextlib.suppress(InvalidArgument):
        glob = Glob.parse(pattern)
        with soon():
            glob.matches(names)
            for name in names:
                glob.matches_segment(name)


@pytest.mark.parametrize("size", [10, 1_000, 1_000_000])
def test_texts_of_any_length_are_refused_soon(size: int) -> None:
    for read, error in READERS:
        for text in ("a" * size, "/" * size, "*" * size, "/a" * size, "[" * size, "é" * size):
            with soon(), contextlib.suppress(error):
                read(text)


def test_tokens_changed_in_any_bit_are_refused_or_others(times: int) -> None:
    token = str(Token.from_position("kc-1", "incarnation", 77))
    for number, character in enumerate(token):
        for bit in range(7):
            other = chr(ord(character) ^ 1 << bit)
            with contextlib.suppress(InvalidToken):
                Token.parse(token[:number] + other + token[number + 1 :])
    anything = Anything(3)
    for _ in range(times):
        with contextlib.suppress(InvalidToken):
            Token.parse(anything.mutated(token.encode()).decode("latin-1"))


# -- configs -------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.one_of(
        st.integers(-(2**70), 2**70),
        st.floats(),
        st.booleans(),
        st.text(max_size=20),
        st.sampled_from(
            ["127.0.0.1:1", "/la", "sqlite:///x", "etcd://a/b", "open", "first", "[::"]
        ),
    ),
    lambda one: st.one_of(
        st.lists(one, max_size=3), st.dictionaries(st.text(max_size=5), one, max_size=3)
    ),
    max_leaves=6,
)
LEAVES: dict[str, tuple[str, ...]] = {
    "": ("cluster", "mount", "site", "listen", "advertise", "parent", "store", "access", "metrics"),
    "limits": (
        "max_call_seconds",
        "max_streams",
        "answer_bytes",
        "inherited_grants_max_age_seconds",
        "retained_change_events",
    ),
    "tls": ("ca", "cert", "key", "client_auth"),
    "auth": (
        "super_users",
        "allow_anonymous",
        "principal_mapping_rules",
        "jwt_key",
        "jwks",
        "audience",
    ),
    "kafka": ("bootstrap", "ceiling", "split_on", "listeners", "mapping", "properties"),
    "links": ("/all", "/la/x", "x"),
}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for table, keys in LEAVES.items():
        chosen = draw(st.lists(st.sampled_from(keys), max_size=3, unique=True))
        content = {key: draw(VALUES) for key in chosen}
        if not table:
            document |= content
        elif content:
            document[table] = draw(st.one_of(st.just(content), VALUES))
    return document


@QUICK
@given(document=documents())
def test_any_config_is_taken_or_refused_in_one_sentence(document: dict[str, Any]) -> None:
    with soon(), contextlib.suppress(ConfigError):
        parse_config(document)


@QUICK
@given(text=st.text(max_size=200))
def test_any_toml_is_taken_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError, tomllib.TOMLDecodeError):
        parse_config(tomllib.loads(text))


# -- rows of a store, and backups ----------------------------------------------------------------


@pytest.fixture(scope="module")
def rows() -> list[tuple[bytes, bytes]]:
    """Returns the rows of a small tree."""
    cluster = Cluster("/la")
    cluster.do(CreateDirectory(path=path("/la/a")))
    cluster.do(CreateTopic(path=path("/la/a/t")))
    cluster.do(CreateLink(path=path("/la/l"), targets=(path("/la/a"),)))
    return sorted((key, value) for key, (value, _) in cluster.rows.values.items())


def test_rows_changed_anywhere_are_put_aside_and_the_rest_is_served(
    rows: list[tuple[bytes, bytes]], times: int
) -> None:
    anything = Anything(11)
    for number in range(times):
        changed = dict(rows)
        for place in range(3):
            key, value = rows[(number + 5 * place) % len(rows)]
            del changed[key]
            if (number + place) % 3:
                key = anything.mutated(key)
            changed[key] = anything.mutated(value)
        with soon():
            snapshot = Snapshot.load(CODEC, "i", 1, [sorted(changed.items())])
            again = Snapshot.empty(CODEC, "i").apply(
                1, tuple(Put(key, value) for key, value in sorted(changed.items()))
            )
        for one in (snapshot, again):
            for place_of in (("a",), ("a", "t"), ("l",), ()):
                lookup(one, place_of)
            assert one.topic_count >= 0
            assert all(one.unreadable_values.values())
            one.locate("a.t")


@QUICK
@given(value=st.binary(max_size=200), name=st.binary(max_size=20))
def test_any_record_is_read_or_put_aside(value: bytes, name: bytes) -> None:
    key = entry_key(ROOT_ID, Kind.TOPIC, "t")
    snapshot = Snapshot.load(CODEC, "i", 1, [sorted({key: value, b"e/" + name: value}.items())])
    lookup(snapshot, ("t",))


@QUICK
@given(value=st.binary(max_size=200))
def test_any_row_of_events_is_read_or_left_out(value: bytes) -> None:
    from directory.namespace.keys import event_key

    events_of(5, [Put(event_key(new_change_id(1, 1)), value)], "kc-1")


def test_backups_changed_anywhere_are_refused_or_whole(
    rows: list[tuple[bytes, bytes]], times: int
) -> None:
    header = admin_pb2.BackupHeader(format=1, cluster_id="kc-1", cluster="la", incarnation="i")
    checksum = Checksum(header)
    checksum.add(rows)
    file = io.BytesIO()
    writer = BackupWriter(file)
    made = [admin_pb2.BackupRow(key=key, value=value) for key, value in rows]
    writer.write(admin_pb2.BackupResponse(header=header))
    writer.write(admin_pb2.BackupResponse(rows=admin_pb2.BackupRows(rows=made)))
    writer.write(admin_pb2.BackupResponse(trailer=checksum.trailer()))
    writer.close()
    whole = file.getvalue()
    assert Backup.read(io.BytesIO(whole)).header == header
    anything = Anything(5)
    for number in range(times):
        damaged = anything.mutated(whole)
        if number % 10 == 0:
            damaged = whole[: number * 7 % len(whole)]
        with soon():
            try:
                read = Backup.read(io.BytesIO(damaged))
            except (DamagedBackup, IncompatibleStore):
                continue
        assert list(read.rows()) == rows
