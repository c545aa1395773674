"""Completion: what could stand at the cursor, and that it comes without gRPC while it can."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from resolver.cli import completion
from resolver.cli.disk_hints import FRESH_SECONDS, MOST_NAMES, ListingCache
from resolver.errors import Absent, KdirError, PermissionDenied, Unauthenticated, Unreachable
from tests.support.command_line import run

AT = "127.0.0.1:7420"


@pytest.fixture(autouse=True)
def _no_settings_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KDIR_AT", raising=False)


def _offered(*line: str, asked_by: str = "zsh") -> list[str]:
    ran = run(["__complete", asked_by, *line])
    assert (ran.code, ran.err) == (0, "")
    return ran.lines


def test_verbs() -> None:
    assert _offered("tr") == ["tree", "trace"]
    assert "ls" in _offered("")
    assert _offered("nosuch") == []
    assert _offered("--at", "h:1", "mk") == ["mkdir"]


def test_options_that_were_not_given_yet() -> None:
    assert "--long" in _offered("ls", "--")
    assert "--long" not in _offered("ls", "--long", "--")
    assert "--set" in _offered("mkdir", "--set", "owner=x", "--")  # repeatable
    assert _offered("--ti") == ["--timeout"]
    assert _offered("server", "--con") == ["--config"]


def test_values_of_options() -> None:
    assert _offered("resolve", "-o", "") == [
        *("table", "json", "yaml", "name", "properties", "kcat", "wide", "jsonpath=")
    ]
    assert _offered("ls", "--output", "js") == ["json", "jsonpath="]
    assert _offered("ls", "--output=y") == ["--output=yaml"]
    assert _offered("completion", "") == ["bash", "zsh", "fish"]
    assert _offered("context", "us") == ["use"]


def test_bash_wants_only_what_is_behind_the_equals_sign() -> None:
    assert _offered("ls", "--output", "=", "y", asked_by="bash") == ["yaml"]
    assert _offered("ls", "--output", "=", asked_by="bash") == [
        *("table", "json", "yaml", "name", "wide", "jsonpath=")
    ]


def test_fish_gets_what_each_means() -> None:
    assert "tree\tdraw what is below a path" in _offered("tr", asked_by="fish")


def test_contexts() -> None:
    run(["context", "set", "prod", "--servers", "h:1"])
    assert _offered("context", "use", "p") == ["prod"]
    assert _offered("--context", "p") == ["prod"]


def test_files(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").touch()
    (tmp_path / "runs").mkdir()
    assert _offered("adopt", "--map", f"{tmp_path}/ru") == [
        f"{tmp_path}/rules.toml",
        f"{tmp_path}/runs/",
    ]


def test_paths_from_what_was_listed_lately() -> None:
    ListingCache([AT]).store("/la", "", ["tracking/", "orders", "orders/", "__adopted/"])
    assert _offered("ls", "/la/") == ["/la/tracking/", "/la/orders", "/la/orders/"]
    assert _offered("stat", "-o", "json", "/la/or") == ["/la/orders", "/la/orders/"]
    assert _offered("ls", "/la/__") == ["/la/__adopted/"]
    assert _offered("mv", "/la/orders", "/la/tr") == ["/la/tracking/"]
    assert _offered("resolve", "/la/nosuch") == []


def test_a_path_is_begun_with_a_slash() -> None:
    assert _offered("ls", "") == ["/"]
    assert _offered("ls", "la") == []


def test_what_other_servers_listed_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_send_request", lambda *_: None)
    ListingCache([AT]).store("/la", "", ["tracking/"])
    assert _offered("--at", "127.0.0.1:1", "ls", "/la/") == []


def test_old_names_are_asked_again_and_offered_only_while_nobody_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import time

    old = time.time() - FRESH_SECONDS - 1
    ListingCache([AT], clock=lambda: old).store("/la", "", ["old/"])
    monkeypatch.setattr(completion, "_send_request", lambda *_: None)
    assert _offered("ls", "/la/") == ["/la/old/"]
    monkeypatch.setattr(completion, "_send_request", lambda *_: ["new/"])
    assert _offered("ls", "/la/") == ["/la/new/"]
    monkeypatch.setattr(completion, "_send_request", lambda *_: pytest.fail("asked once more"))
    assert _offered("ls", "/la/n") == ["/la/new/"]


@pytest.mark.parametrize("kind", [Absent, PermissionDenied, Unauthenticated, Unreachable])
def test_old_names_of_what_is_absent_or_denied_are_not_offered(
    monkeypatch: pytest.MonkeyPatch, kind: type[KdirError]
) -> None:
    import time

    asked: list[object] = []

    def refuse(_: object, directory: str, **__: object) -> None:
        asked.append(directory)
        raise kind("/la: no")

    monkeypatch.setattr("resolver.client.Resolver.list", refuse)
    old = time.time() - FRESH_SECONDS - 1
    ListingCache([AT], clock=lambda: old).store("/la", "", ["old/"])
    is_away = kind is Unreachable
    for count in (1, 2):
        assert _offered("ls", "/la/") == (["/la/old/"] if is_away else [])
        assert len(asked) == (count if is_away else 1), "an answer is kept"


def test_names_are_offered_only_to_the_caller_who_listed_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config" / "kdir").mkdir(parents=True)
    (tmp_path / "config" / "kdir" / "config.toml").write_text(
        f'[contexts.admin]\nservers = ["{AT}"]\ncert = "/a.pem"\nkey = "/a.key"\n'
        f'[contexts.restricted]\nservers = ["{AT}"]\ncert = "/r.pem"\nkey = "/r.key"\n'
    )
    monkeypatch.setattr(completion, "_send_request", lambda *_: ["secret/"])
    assert _offered("--context", "admin", "ls", "/la/") == ["/la/secret/"]
    monkeypatch.setattr(completion, "_send_request", lambda *_: None)
    assert _offered("--context", "admin", "ls", "/la/") == ["/la/secret/"]
    assert _offered("--context", "restricted", "ls", "/la/") == []


def test_too_many_names_are_not_kept_as_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(_servers: object, _login: object, _directory: str, start: str) -> list[str]:
        asked.append(start)
        return [f"{start}{number:04}" for number in range(MOST_NAMES)]

    monkeypatch.setattr(completion, "_send_request", ask)
    _offered("ls", "/la/")
    _offered("ls", "/la/t")
    assert asked == ["", "t"]


def test_nothing_that_goes_wrong_reaches_the_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config" / "kdir").mkdir(parents=True)
    (tmp_path / "config" / "kdir" / "config.toml").write_text("][")
    ran = run(["__complete", "bash", "ls", "/la/"])
    assert (ran.out, ran.err) == ("", "")


def test_a_broken_cache_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "_send_request", lambda *_: ["fresh/"])
    ListingCache([AT]).store("/la", "", ["tracking/"])
    for file in (tmp_path / "cache" / "kdir" / "names").iterdir():
        file.write_bytes(b"\xff\x00 nonsense")
    assert _offered("ls", "/la/") == ["/la/fresh/"]


@pytest.mark.parametrize(
    "line", [["ls", "/la/t"], ["tr"], ["ls", "--"], ["--context", ""], ["ls", "-o", ""]]
)
def test_it_comes_without_grpc(line: list[str]) -> None:
    ListingCache([AT]).store("/la", "", ["tracking/"])
    code = (
        "import sys; from resolver.cli.main import main; main(sys.argv[1:]);"
        "heavy = {'grpc', 'google.protobuf', 'asyncio', 'dataclasses'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "__complete", "zsh", *line],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    assert f"kdir __complete {shell}" in run(["completion", shell]).out


def test_operations_also_behind_a_comma() -> None:
    assert _offered("grant", "alice", "des") == [
        "describe",
        "describe-configs",
        "describe-tokens",
    ]
    assert _offered("revoke", "alice", "read,wr") == ["read,write"]
    assert _offered("check", "alice", "rea") == ["read"]


def test_what_can_be_set() -> None:
    assert _offered("arm", "/la", "--aspect", "c") == ["create", "configs"]
    assert _offered("set", "/la", "retention.") == ["retention.bytes=", "retention.ms="]
    assert _offered("set", "/la", "owner=x", "tag") == ["tags."]
    assert _offered("unset", "/la", "retention.m") == ["retention.ms"]
    assert _offered("effective", "/la", "--if", "own") == ["owner="]


def test_the_arguments_that_are_offered_are_those_that_are_taken() -> None:
    from kdir.v1 import access_pb2

    from directory.namespace.topic_configs import NAMES
    from resolver.access_requests import operation_of
    from resolver.cli.completion import KEYS, OPERATIONS, TOPIC_CONFIGS
    from resolver.cli.policy_arguments import field_of

    assert sorted(map(operation_of, OPERATIONS)) == sorted(access_pb2.Operation.values())[1:]
    assert frozenset(TOPIC_CONFIGS) == NAMES
    masks = [field_of(key if not key.endswith(".") else f"{key}x", "set").mask for key in KEYS]
    assert len(set(masks)) == len(KEYS)


def test_only_names_of_paths_are_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell puts the words on the command line as they are."""
    from kdir.v1 import entry_pb2

    names: tuple[str, ...] = ("fine", "$(reboot)", "a;b", "a\nb", "\x1b[2J", "a b")
    given: list[object] = []

    class Listed:
        def __init__(self, name: str) -> None:
            self.path = f"/la/{name}"
            self.entry = entry_pb2.Entry(path=self.path, topic=entry_pb2.Topic())

    class Resolver:
        def __init__(self, *_: object, **options: object) -> None:
            given.append(options.get("allow"))

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...
        def list(self, *_: object, **__: object) -> list[Listed]:
            return [Listed(name) for name in names]

    monkeypatch.setattr("resolver.client.Resolver", Resolver)
    monkeypatch.setenv("KDIR_ALLOW", "10.0.0.0/8")
    assert _offered("--at", AT, "ls", "/la/") == ["/la/fine"]
    assert given == [("10.0.0.0/8",)], "referrals lead only where the user allows"
    names = ("fine", "define")  # both match the glob of what is typed
    for typed in ("*f", "?", "?ine"):
        assert _offered("--at", "127.0.0.1:7421", "ls", f"/la/{typed}") == []
    assert _offered("--at", "127.0.0.1:7421", "ls", "/la/f") == ["/la/fine"]
