"""The verbs of access and policies as people use them, on two real servers without Kafka."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from resolver.cli import apply
from tests.support.command_line import Ran, run
from tests.support.federation import Federation

SECRET = "s" * 32
set_verb = import_module("resolver.cli.set")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with Federation(tmp_path_factory.mktemp("verbs")) as made:
        made.start("/")
        made.join("/la", "/")
        yield made


@pytest.fixture(autouse=True)
def _no_settings_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KDIR_AT", raising=False)


class Kdir:
    """``kdir`` at the root; ``#`` in a line is a directory of this test's own in la."""

    def __init__(self, federation: Federation, own: str) -> None:
        self._at = federation["/"].address
        self._own = own

    def __call__(self, line: str, *, terminal: bool = False) -> Ran:
        arguments = shlex.split(line.replace("#", self._own))
        return run(["--at", self._at, *arguments], terminal=terminal)


@pytest.fixture
def kdir(federation: Federation, request: pytest.FixtureRequest) -> Kdir:
    made = Kdir(federation, f"/la/{request.node.name}")
    assert made("mkdir #").code == 0
    return made


def test_a_grant_that_is_given_is_shown_and_taken_away(kdir: Kdir) -> None:
    given = kdir("grant alice read,write #")
    assert (given.code, given.out) == (
        0,
        "ALLOW User:alice READ TOPIC from *\nALLOW User:alice WRITE TOPIC from *\n",
    )
    assert "2 grants" in given.err
    assert kdir("grants #").lines == [
        "User:alice\tALLOW\tREAD\tTOPIC\t-\t*",
        "User:alice\tALLOW\tWRITE\tTOPIC\t-\t*",
    ]
    assert kdir("grant alice write #").err == "no change: already granted\n"
    assert kdir("revoke alice read #").out == "ALLOW User:alice READ TOPIC from *\n"
    assert [one["operation"] for one in kdir("grants # -o json").objects] == ["OPERATION_WRITE"]


def test_a_plan_of_a_grant_gives_nothing(kdir: Kdir) -> None:
    planned = kdir("grant alice read # --plan")
    assert (planned.code, planned.lines[0]) == (0, "ALLOW User:alice READ TOPIC from *")
    assert "would be granted" in planned.err
    assert kdir("grants #").out == ""


def test_no_grants_is_shown(kdir: Kdir) -> None:
    assert kdir("grants #").out == ""
    assert "no grants on " in kdir("grants #").err
    assert kdir("grants # -o json") == Ran(0, "", "")


def test_revoking_what_was_never_given_says_what_was(kdir: Kdir) -> None:
    # A grant goes as it came: "all" is not "whatever there is", and who believed so must be told.
    kdir("grant alice read #")
    kdir("grant bob write #")
    ran = kdir("revoke alice all #")
    assert ran.out == ""
    assert ran.err.startswith("no change: ")
    assert "ALLOW User:alice READ TOPIC from *" in ran.err
    assert "ALLOW User:bob WRITE TOPIC from *" in kdir("revoke bop write #").err
    assert len(kdir("grants #").lines) == 2


def test_a_denied_check_says_so_in_every_format(kdir: Kdir) -> None:
    kdir("grant bob all # --deny")
    denied = kdir("check bob read #/x --explain")
    assert (denied.code, denied.lines[0].partition(":")[0]) == (4, "denied")
    assert denied.lines[-1].endswith("decides")
    as_json = kdir("check bob read #/x -o json")
    assert (as_json.code, as_json.objects[0]["allowed"]) == (4, False)
    assert "allowed: false" in kdir("check bob read #/x -o yaml").lines
    assert kdir("check alice read #/x -o json").objects[0]["allowed"] is True


@pytest.mark.parametrize(
    ("line", "output"),
    [
        ("grant alice raed #", "did you mean read?"),
        ("grant alice read # --host 10.0.0.0/8", "an IP address, or *"),
        ("grant alice read # --group x --cluster", "--group and --cluster: one of them"),
        ("check alice read", "PATH is required"),
        ("check alice read --any topc", "one of topic, group"),
        ("set # retenton.ms=1d", "did you mean retention.ms?"),
        ("set # retention.ms=soon", "a whole number from -1"),
        ("set # closed=maybe", "one of true, yes, on, false, no, off"),
        ("set # manage.configs=true", "kdir arm"),
        ("unset # nope", "no key that could be set"),
        ("effective # --if closed=true", "--if is for policies"),
        ("arm #", "--aspect: expected one of create, configs, acls, delete"),
        ("arm # --aspect config", "--aspect 'config': one of create, configs, acls, delete"),
    ],
)
def test_arguments_that_are_wrong_are_named(federation: Federation, line: str, output: str) -> None:
    ran = Kdir(federation, "/la")(line)
    assert (ran.code, ran.out) == (2, "")
    assert output in ran.err


@pytest.mark.parametrize(
    "line", ["grants #", "grant alice read #", "set # owner=x", "unset # owner", "effective #"]
)
def test_what_is_not_there_is_absent(federation: Federation, line: str) -> None:
    ran = Kdir(federation, "/la/nowhere")(line)
    assert ran.code == 1
    assert "/la/nowhere does not exist" in ran.err
    assert "kdir ls /la" in ran.err


def test_what_is_set_above_holds_below_and_what_is_cleared_does_not(kdir: Kdir) -> None:
    assert kdir("set # retention.ms=1d tags.tier=1").code == 0
    assert kdir("mkdir #/below").code == 0
    assert kdir("set #/below tags.tier=2").code == 0
    rows = {row.split("\t")[0]: row.split("\t") for row in kdir("effective #/below").lines}
    assert rows["retention.ms"][1] == "86400000"
    assert rows["tags.tier"][1:3] == ["2", rows["retention.ms"][2] + "/below"]
    assert rows["tags.tier"][-1].startswith("1 at ")
    assert kdir("unset #/below retention.ms --clear").code == 0
    rows = {row.split("\t")[0]: row.split("\t") for row in kdir("effective #/below").lines}
    assert rows["retention.ms"][1] == "(cleared)"
    assert rows["retention.ms"][2].endswith("/below")
    assert rows["retention.ms"][-1].startswith("86400000 at ")
    assert kdir("unset #/below retention.ms").code == 0
    assert "retention.ms" in kdir("effective #/below").out


def test_what_if_changes_nothing(kdir: Kdir) -> None:
    ran = kdir("effective # --if owner=me")
    assert "owner\tme\t" in ran.out
    assert "dry run" in ran.err
    assert "owner" not in kdir("effective #").out
    assert "are of new topics" in kdir("effective # --if partitions=9").err


def test_a_difference_from_kafka_that_is_not_there_is_refused(kdir: Kdir) -> None:
    ran = kdir("effective # --diff")
    assert (ran.code, ran.out) == (2, "")
    assert "has no Kafka behind it: nothing to compare" in ran.err
    assert "nothing was compared" in ran.err


def test_an_update_by_an_old_etag_is_a_conflict(kdir: Kdir) -> None:
    seen = kdir("stat # -o json").objects[0]["etag"]
    assert kdir(f"set # owner=first --etag {seen}").code == 0
    late = kdir(f"set # owner=second --etag {seen}")
    assert late.code == 5
    assert "ETAG_MISMATCH" in late.err
    assert "owner\tfirst" in kdir("effective #").out


def test_a_change_between_plan_and_write_is_a_conflict(
    kdir: Kdir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = kdir("stat # -o name").lines[0].rstrip("/")
    file = tmp_path / "tree.yaml"
    file.write_text(f"{{path: {where}, kind: directory, policies: {{retention.ms: 1d}}}}")
    lines = ("set # retention.ms=1d", "unset # retention.ms", f"apply {file}")
    for line in lines:
        assert kdir("set # retention.ms=2d").code == 0
        module = apply if line.startswith("apply") else set_verb
        plan = module.plans_below

        def then_another_caller(
            *arguments: Any, module: Any = module, plan: Any = plan, owner: str = line[:4]
        ) -> Any:
            monkeypatch.setattr(module, "plans_below", plan)
            assert kdir(f"set # owner={owner}").code == 0
            return plan(*arguments)

        monkeypatch.setattr(module, "plans_below", then_another_caller)
        late = kdir(line)
        assert late.code == 5, late.err
        assert f"{where} has changed since it was read or planned" in late.err
        assert f"who changed it: kdir history {where}" in late.err
        assert "retention.ms\t172800000" in kdir("effective #").out
        assert kdir(line).code == 0


def test_who_is_not_known_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET)
    settings = {"access": "enforce", "auth": {"jwt_key": str(tmp_path / "secret")}}
    with Federation(tmp_path) as federation:
        server = federation.make(tmp_path / "one", "/", settings)
        try:
            server.start()
            ran = run(["--at", server.address, "ls", "/"])
        finally:
            server.process.kill()
    assert ran.code == 4
    assert "UNAUTHENTICATED" in ran.err
    assert "kdir context set" in ran.err


def test_who_may_not_see_is_shown_who_they_are(tmp_path: Path) -> None:
    import jwt

    (tmp_path / "secret").write_text(SECRET)
    token = jwt.encode({"sub": "alice", "exp": 2**33}, SECRET, "HS256")
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    settings = {"access": "enforce", "auth": {"jwt_key": str(tmp_path / "secret")}}
    with Federation(tmp_path) as federation:
        server = federation.make(tmp_path / "one", "/", settings)
        try:
            server.start()
            login = ["--servers", server.address, "--token-file", str(tmp_path / "token")]
            assert run(["context", "set", "one", *login]).code == 0
            ran = run(["ls", "/", "--context", "one"])
        finally:
            server.process.kill()
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "error: / does not exist (ABSENT)",
        "  or you lack DESCRIBE on it; your identity: kdir doctor",
    ]


def test_history_says_which_grants_came_and_went(kdir: Kdir) -> None:
    kdir("grant alice read,write #")
    kdir("revoke alice read #")
    kdir("set # owner=x")
    newest, revoked, granted = (row.split("\t")[-1] for row in kdir("history -n 3 #").lines)
    assert newest == "owner: - → x"
    assert revoked == "removed ALLOW User:alice READ TOPIC from *"
    assert granted == (
        "added ALLOW User:alice READ TOPIC from *, added ALLOW User:alice WRITE TOPIC from *"
    )
