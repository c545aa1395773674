"""A mistake in a config is one sentence: the key, what was found, what is expected."""

from __future__ import annotations

import errno
import os
import pathlib
import tomllib
from contextlib import closing

import pytest

from directory.maintenance import offline_commands
from directory.namespace.entry import LinkMode
from directory.server import process
from directory.server.config import ConfigError, ServerConfig, load_configs, parse_config
from directory.server.config_security import parse_super_users
from directory.store.addresses import open_store
from directory.store.base import Conflict
from resolver.errors import InvalidArgument
from resolver.path import Path

FULL = """
cluster = "la-tracking"
mount = "/la/tracking"
site = "la"
listen = "127.0.0.1:7421"
advertise = ["localhost:7421"]
parent = ["127.0.0.1:7420"]
store = "sqlite:////var/lib/kdir/la-tracking.sqlite"

[kafka]
bootstrap = "127.0.0.1:9092, 127.0.0.1:9093"
ceiling = ["create", "delete"]
split_on = "."
sweep_interval_seconds = 5

[[kafka.mapping_rules]]
match = "search.*"
split_on = "."

[kafka.listeners.edge]
bootstrap = "kafka.la.example:9094"
protocol = "SASL_SSL"
mechanism = "SCRAM-SHA-512"

[links]
"/tracking" = "/la/tracking"
"/all" = { targets = ["/la/x", "/ny/x"], mode = "union" }

[limits]
read_threads = 4
max_stale_seconds = 60
"""

HUGE = f"0x{4_000 * 'f'}"  # Python reads it, and writes no integer of so many digits in decimal


def parsed(text: str) -> ServerConfig:
    return parse_config(tomllib.loads(text))


def test_a_full_config_is_read() -> None:
    config = parsed(FULL)
    assert config.mount == Path(("la", "tracking"))
    assert config.kafka is not None
    assert config.kafka.bootstrap == ("127.0.0.1:9092", "127.0.0.1:9093")
    assert config.kafka.ceiling == {"create", "delete"}
    assert config.kafka.listeners[0].sasl_mechanism == "SCRAM-SHA-512"
    assert [link.mode for link in config.links] == [LinkMode.FIRST, LinkMode.UNION]
    assert config.limits.read_threads == 4
    assert config.limits.max_stale_seconds == 60.0


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('clustr = "x"', ("unknown key 'clustr'", "'cluster'")),
        ("[limits]\nread_thread = 3", ("unknown key 'limits.read_thread'", "'read_threads'")),
        ("[limits]\nread_threads = 0", ("limits.read_threads", "0", "above 0")),
        ("[limits]\nread_threads = true", ("limits.read_threads", "True")),
        ("[limits]\nread_threads = 1025", ("limits.read_threads", "1025", "at most 1024")),
        (
            "[limits]\nmax_request_bytes = 99999999999999999999",
            ("limits.max_request_bytes", "99999999999999999999", "at most 1073741824"),
        ),
        ("[limits]\ndrain_seconds = inf", ("limits.drain_seconds", "inf", "at most 86400")),
        (f"[limits]\nmax_call_seconds = 1{309 * '0'}", ("limits.max_call_seconds", "1e308")),
        (f"[limits]\nlist_items = 1{309 * '0'}", ("limits.list_items", "1e308")),
        (
            f'[kafka]\nbootstrap = "h:1"\nsweep_interval_seconds = 1{309 * "0"}',
            ("kafka.sweep_interval_seconds", "1e308"),
        ),
        (f"mount = {HUGE}", ("mount", "a number of 16000 bits", "text")),
        (f"mount = [{HUGE}]", ("mount", "a number of too many digits", "text")),
        (f"[limits]\nread_threads = {HUGE}", ("limits.read_threads", "16000 bits", "at most 1024")),
        (f"[limits]\nmax_call_seconds = {HUGE}", ("limits.max_call_seconds", "1e308")),
        (f'mount = "/la"\n[links]\n"/x" = {HUGE}', ("links./x", "16000 bits", "a list of paths")),
        (
            f'[kafka]\nbootstrap = "h:1"\n[kafka.properties]\nlinger.ms = {HUGE}',
            ("kafka.properties: linger.ms", "16000 bits", "at most 64"),
        ),
        ("[limits]\nread_threads = 1.5", ("limits.read_threads", "1.5", "whole number")),
        ('listen = "0.0.0.0:7420"', ("listen", "0.0.0.0:7420", "loopback", "127.0.0.1:7420")),
        ('listen = "kafka-1:7420"', ("listen", "loopback")),
        ('listen = "127.0.0.1"', ("listen", "host:port")),
        ('listen = "127.0.0.1:99999"', ("listen", "host:port")),
        ('mount = "/a//b"', ("mount", "segment 2 is empty")),
        ("mount = 3", ("mount", "3", "text")),
        ('store = "mysql://x"', ("store", "mysql://x", "sqlite:///")),
        ('store = "sqlite:///"', ("store", "sqlite:///")),
        ('parent = ["la"]', ("parent", "'la'", "host:port")),
        ('parent = ["unix:/run/x:1"]', ("parent", "'unix:/run/x:1'", "host:port")),
        ('advertise = ["dns:///la:1"]', ("advertise", "'dns:///la:1'", "host:port")),
        (f"parent = {[f'h{n}:1' for n in range(21)]}", ("parent", "21 of them", "at most 20")),
        ('[dial]\nallow = ["10.0.0.1/8"]', ("dial.allow", "'10.0.0.1/8'", "10.0.0.0/8")),
        ("[dial]\nallow = [1]", ("dial.allow", "a list of texts")),
        ("[dial]\nalow = []", ("dial.alow", "allow")),
        ("[kafka]", ("kafka.bootstrap", "missing")),
        ('[kafka]\nbootstrap = "h:1"\nceiling = ["creat"]', ("kafka.ceiling", "creat", "create")),
        (
            '[kafka]\nbootstrap = "h:1"\nceiling = ["observe", "create"]',
            ("kafka.ceiling", "['observe', 'create']", "or observe alone"),
        ),
        (
            '[kafka]\nbootstrap = "h:1"\nsweep_interval_seconds = 0',
            ("kafka.sweep_interval_seconds", "above 0"),
        ),
        (
            '[kafka]\nbootstrap = "h:1"\nconfigs_per_second = -1',
            ("kafka.configs_per_second", "-1", "above 0"),
        ),
        ('[kafka]\nbootstrap = "h:1"\nmax_acls = inf', ("kafka.max_acls", "inf", "above 0")),
        ('[kafka]\nbootstrap = "h:1"\nmax_acls = nan', ("kafka.max_acls", "nan", "above 0")),
        ('metrics = "0.0.0.0:9420"', ("metrics", "metrics are served on loopback only")),
        (
            '[kafka]\nbootstrap = "h:1"\n[change_log]\nproperties_file = "x"',
            ("change_log.properties_file", "without change_log.bootstrap"),
        ),
        ('[kafka]\nbootstrap = "h:1"\n[kafka.listeners]\nx = 3', ("kafka.listeners.x", "table")),
        (
            '[kafka]\nbootstrap = "h:1"\n[kafka.listeners.x]\nprotocol = "TLS"',
            ("kafka.listeners.x.protocol", "TLS", "SASL_SSL"),
        ),
        ('mount = "/la"\n[links]\n"/la/x" = "/y"', ("links./la/x", "site link", "kdir ln")),
        ('mount = "/la"\n[links]\n"/x" = []', ("links./x", "at least one")),
        (
            'mount = "/la"\n[links]\n"/x" = { targts = ["/a"] }',
            ("links./x.targts", "'targets'"),
        ),
        ('mount = "/la"\n[links]\n"/x" = "/x"', ("links./x", "itself")),
        (
            'mount = "/la"\n[links]\n"/x" = { targets = "/y", mode = "both" }',
            ("links./x.mode", "both", "first, union"),
        ),
        ('cluster = "a b"', ("cluster", "a b")),
        ('[tls]\ncert = "x"\nca = "y"', ("tls.key", "missing")),
        (
            '[tls]\ncert = "x"\nkey = "y"\nca = "z"\nclient_auth = "optional"',
            ("tls.client_auth", "gRPC"),
        ),
        (
            '[tls]\ncert = "x"\nkey = "y"\nca = "z"\nclient_aut = "none"',
            ("tls.client_aut", "'client_auth'"),
        ),
        ('[auth]\njwt_key = "x"\njwks = "y"', ("jwt_key or jwks, not both",)),
        (
            "[auth]\nallow_anonymous = false",
            ("auth.allow_anonymous", "no other way to authenticate"),
        ),
        ('[auth]\nallow_anonymous = true\naudience = "x"', ("jwt_key or jwks is missing",)),
        ('[auth]\nallow_anonymous = true\nsuper_users = ["al"]', ("auth.super_users", "User:al")),
        (
            '[auth]\njwt_key = "x"\nallow_anonymous = "no"',
            ("auth.allow_anonymous", "true or false"),
        ),
        (
            'listen = "0.0.0.0:1"\n[tls]\ncert = "x"\nkey = "y"\nca = "z"',
            ("advertise", "every address"),
        ),
    ],
)
def test_a_mistake_is_named(text: str, arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    for argument in arguments:
        assert argument in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "store",
    [
        "etcds://la:s3cret@a:2379/la",
        "etcds://la:s3cret/more@a/la",
        "etcd:/la:s3cret@a/la",
        "la:s3cret@a/la",
        "etcd://la:s3cret@a:none/la",
        "etcd://my la:s3cret@a/la",
        "etcd://la: s3cret@a/la",
    ],
)
def test_a_store_that_is_none_is_refused_without_its_password(
    store: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "la.toml"
    file.write_text(f'mount = "/la"\nstore = "{store}"\n')
    restore = ["--new-life", "--plan"]
    assert process.main(["--check", "--config", str(file)]) == 2
    assert offline_commands.main("restore", [*restore, "--config", str(file)]) == 2
    assert offline_commands.main("restore", [*restore, "--store", store]) == 2
    shown = capsys.readouterr().err
    assert shown.count("error: ") == 3
    assert "s3cret" not in shown


@pytest.mark.parametrize("password", ["s3cret", "my%20s3cret", "p@s3cret", "s3cret\\u0007"])
def test_a_check_shows_no_password(
    password: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "la.toml"
    file.write_text(f'mount = "/la"\nstore = "etcd://la:{password}@a:2379/la"\n')
    process.main(["--check", "--config", str(file)])
    shown = "".join(capsys.readouterr())
    assert "etcd://a:2379/la" in shown or "etcd://la:***@a:2379/la" in shown
    assert "s3cret" not in shown


@pytest.mark.parametrize(
    ("table", "kafka", "log"),
    [
        (
            "",
            "may change there: nothing: it observes; and the change log is there\n",
            "change log: k:9092; topics __change_events and __change_history, made where",
        ),
        (
            'bootstrap = ["other:9092"]',
            "may change there: nothing: it observes\n",
            "change log: other:9092; topics __change_events.CLUSTER-ID and __change_history.CL",
        ),
    ],
)
def test_a_check_shows_the_change_log(
    table: str, kafka: str, log: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "la.toml"
    file.write_text(f'mount = "/la"\n[kafka]\nbootstrap = ["k:9092"]\n[change_log]\n{table}\n')
    assert process.main(["--check", "--config", str(file)]) == 0
    shown = capsys.readouterr().out
    assert kafka in shown
    assert log in shown


def test_files_of_a_folder_may_not_share_a_cluster_or_store(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.toml").write_text('cluster = "x"\nstore = "sqlite:///a.db"')
    (tmp_path / "b.toml").write_text('cluster = "x"\nstore = "sqlite:///b.db"')
    with pytest.raises(ConfigError, match="cluster 'x' is also that of"):
        load_configs([str(tmp_path)])
    (tmp_path / "b.toml").write_text('cluster = "y"\nstore = "sqlite:///a.db"')
    with pytest.raises(ConfigError, match=r"store .* is also that of"):
        load_configs([str(tmp_path)])


def test_clusters_of_one_address_may_not_share_a_mount(tmp_path: pathlib.Path) -> None:
    """Only one of them could be asked about its paths."""

    def write(name: str, more: str) -> None:
        text = f'cluster = "{name}"\nstore = "sqlite:///{name}.db"\nmount = "/la"\n{more}'
        (tmp_path / f"{name}.toml").write_text(text)

    write("a", "")
    write("b", "")
    with pytest.raises(ConfigError, match=r"b\.toml: mount '/la' at listen .* also that of"):
        load_configs([str(tmp_path)])
    write("b", 'listen = "127.0.0.1:7421"')
    assert len(load_configs([str(tmp_path)])) == 2
    write("b", 'parent = ["127.0.0.1:7422"]')  # decides where b is mounted
    assert len(load_configs([str(tmp_path)])) == 2
    for name in "ab":
        write(name, 'listen = "127.0.0.1:0"')  # a port each
    assert len(load_configs([str(tmp_path)])) == 2


def test_clusters_without_a_mount_of_their_own_are_served_with_a_warning(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cluster that once had a parent keeps in its store where that one mounted it."""
    for name in "ab":
        text = f'cluster = "{name}"\nstore = "sqlite:///{name}.db"\n'
        (tmp_path / f"{name}.toml").write_text(text)
    assert len(load_configs([str(tmp_path)])) == 2
    assert "b.toml: mount '/' at listen '127.0.0.1:7420' is also that of" in caplog.text
    assert "expected a mount in each file" in caplog.text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("folder", r"store: found 'sqlite:///folder', which is a directory; expected a file"),
        ("x" * 231, "store: found a file name of 231 bytes; expected at most 230"),
    ],
)
def test_a_store_that_can_be_no_file_is_refused_at_the_check(
    tmp_path: pathlib.Path, name: str, expected: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.toml").write_text(f'store = "sqlite:///{name}"')
    with pytest.raises(ConfigError, match=expected):
        load_configs([str(tmp_path / "a.toml")])


def test_the_longest_name_of_a_store_has_room_for_the_names_beside_it(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "a.toml").write_text(f'store = "sqlite:///{"x" * 230}"')
    address = load_configs([str(tmp_path / "a.toml")])[0].store
    with closing(open_store(address, "la")) as store:
        assert not isinstance(store.create_ephemeral(b"k", b"v"), Conflict)
        role = store.elect("parent-link", "me")
        assert role is not None
        role.release()


def test_a_relative_store_is_beside_its_config(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.toml").write_text('store = "sqlite:///a.db"')
    assert load_configs([str(tmp_path / "a.toml")])[0].store == f"sqlite:///{tmp_path}/a.db"


def test_a_file_that_cannot_be_used_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ConfigError, match="no\\.toml: cannot be read"):
        load_configs([str(tmp_path / "no.toml")])
    for text in ("= 3", f"x = {'[' * 5_000}", f"x = {'1' * 5_000}"):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(ConfigError, match=r"bad\.toml: not TOML"):
            load_configs([str(tmp_path)])


@pytest.mark.parametrize("number", [errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG])
def test_a_folder_that_cannot_be_read_is_named(
    number: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("stat", "is_dir"):  # which one the other calls differs among Pythons
        monkeypatch.setattr(pathlib.Path, name, fails)
    with pytest.raises(ConfigError, match=f"la: cannot be read: {os.strerror(number)}"):
        load_configs([str(tmp_path / "la")])


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    (tmp_path / "la.toml").write_text("")
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, fails)
    with pytest.raises(ConfigError, match=f"{tmp_path}: cannot be read: Permission denied"):
        load_configs([str(tmp_path)])


def test_without_a_home_only_the_default_store_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails() -> pathlib.Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(pathlib.Path, "home", fails)
    assert parsed('store = "sqlite:////x"').store == "sqlite:////x"
    assert ServerConfig.quick(Path(("la",)), store="sqlite:////x").store == "sqlite:////x"
    with pytest.raises(ConfigError, match="store: missing, and the user has no home folder"):
        parsed("")
    with pytest.raises(ConfigError, match="store: missing, and the user has no home folder"):
        ServerConfig.quick(Path(("la",)))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("", set()),
        (" ", set()),
        ("User:bob;User:alice ", {"User:bob", "User:alice"}),
        ("; User:bob ; User:alice", {"User:bob", "User:alice"}),
        (["User:bob", "User:a;b"], {"User:bob", "User:a;b"}),
        ([], set()),
    ],
)
def test_A10_super_users_are_read(arguments: str | list[str], found: set[str]) -> None:
    assert parse_super_users(arguments) == found


@pytest.mark.parametrize("arguments", ["bob;:alice", ["User:bob", "alice"], "User:*"])
def test_A10_a_wrong_super_user_is_an_error(arguments: str | list[str]) -> None:
    with pytest.raises(InvalidArgument):
        parse_super_users(arguments)
