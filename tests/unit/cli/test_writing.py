"""The verbs that change things: what they ask of owners and of people, and exit codes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from kdir.v1 import (
    access_pb2,
    admin_pb2,
    directory_pb2,
    entry_pb2,
    policies_pb2,
    resolve_pb2,
)

from resolver import errors
from resolver.access_requests import grants_of
from resolver.cli.create import is_likely_typo
from resolver.cli.parser import YES
from resolver.cli.registry import every_verb
from resolver.errors import LocksOut
from resolver.testing import MemoryDirectory
from tests.support.command_line import Ran, answering, run

AT = "127.0.0.1:20000"


@pytest.fixture(autouse=True)
def _no_settings_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KDIR_AT", raising=False)


class Kdir:
    """``kdir`` at one cluster whose answers to writes are canned; ``calls`` holds the requests."""

    def __init__(self, tree: MemoryDirectory) -> None:
        self.tree = tree
        self.calls: list[Any] = []
        self.answers: dict[str, Any] = {}

    def __call__(self, *arguments: str, terminal: bool = False, stdin: str = "") -> Ran:
        owner = self.tree.deepest(_root())
        assert owner is not None
        self.tree.transport.serve(AT, answering(self.answers, owner.answer, self.calls))
        return run(["--at", AT, *arguments], self.tree.transport, terminal=terminal, stdin=stdin)

    @property
    def asked(self) -> Any:
        """The last request that was answered by a can."""
        return self.calls[-1]


def _root() -> Any:
    from resolver.path import ROOT

    return ROOT


def _created(request: directory_pb2.CreateEntryRequest) -> directory_pb2.CreateEntryResponse:
    answer = directory_pb2.CreateEntryResponse(entry=request.entry)
    answer.entry.path = request.path
    answer.authority.cluster.cluster = "la"
    if request.entry.HasField("topic") and not request.entry.topic.physical_name:
        answer.entry.topic.physical_name = request.path.strip("/").replace("/", ".")
    return answer


def _updated(request: directory_pb2.UpdateEntryRequest) -> directory_pb2.UpdateEntryResponse:
    answer = directory_pb2.UpdateEntryResponse(entry=request.entry)
    answer.entry.path = request.path
    return answer


def _deleted(request: directory_pb2.DeleteEntryRequest) -> directory_pb2.DeleteEntryResponse:
    return directory_pb2.DeleteEntryResponse(
        topic_count=3 if request.recursive else 1, directory_count=2 if request.recursive else 0
    )


@pytest.fixture
def kdir() -> Iterator[Kdir]:
    with MemoryDirectory() as tree:
        tree.cluster("/", "la")
        tree.topic("/search/clicks")
        tree.topic("/orders")
        tree.link("/link", "/search")
        kdir = Kdir(tree)
        kdir.answers["DirectoryService.CreateEntry"] = _created
        kdir.answers["DirectoryService.UpdateEntry"] = _updated
        kdir.answers["DirectoryService.DeleteEntry"] = _deleted
        yield kdir


def test_set_names_the_path_where_no_entry_is_shown(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.UpdateEntry"] = lambda _: directory_pb2.UpdateEntryResponse()
    assert "at /orders" in kdir("set", "/orders", "retention.ms=7d").err


# -- mkdir, create, ln, mount --------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "did"), [(["--plan"], "would remove"), (["-y"], "removed")])
def test_rm_counts_what_cannot_be_read_and_does_not_call_it_empty(
    kdir: Kdir, flags: list[str], did: str
) -> None:
    kdir.answers["DirectoryService.DeleteEntry"] = lambda _: directory_pb2.DeleteEntryResponse(
        directory_count=1, unreadable_count=1
    )
    ran = kdir("rm", "-r", *flags, "/search")
    found = "directory /search, with 1 entry that cannot be read below it"
    assert f"{did} {found}\n" in ran.err


def test_mkdir_says_on_stderr_what_it_did(kdir: Kdir) -> None:
    assert kdir("mkdir", "/a") == Ran(0, "", "made /a\n")
    assert kdir.asked.entry.HasField("directory")
    assert not kdir.asked.make_parents
    assert kdir.asked.request_id


@pytest.mark.parametrize(
    ("arguments", "note"),
    [
        (["create", "/a"], "interrupted: /a may have been made: kdir stat /a\n"),
        (["create", "--plan", "/a"], ""),
    ],
)
def test_an_interrupted_write_says_that_it_may_have_been_done(
    kdir: Kdir, arguments: list[str], note: str
) -> None:
    def interrupted(_: directory_pb2.CreateEntryRequest) -> Any:
        raise KeyboardInterrupt

    kdir.answers["DirectoryService.CreateEntry"] = interrupted
    assert kdir(*arguments) == Ran(130, "", note)


@pytest.mark.parametrize(
    ("option", "policy"),
    [("--partitions", "partitions"), ("--replication-factor", "replication_factor")],
)
def test_create_takes_no_two_numbers_of_one_topic(kdir: Kdir, option: str, policy: str) -> None:
    ran = kdir("create", "/a", "/b", option, "4", "--set", f"{policy}=3")
    assert (ran.code, kdir.calls) == (2, [])
    assert ran.err.count(f"{option} 4 and --set {policy}=3 contradict each other: give one") == 1
    assert kdir("create", "/a", option, "4", "--set", f"{policy}=4").code == 0
    assert kdir("create", "/a", "--set", f"{policy}=3").code == 0


def test_a_plan_of_several_paths_has_what_the_command_would_do(kdir: Kdir) -> None:
    def missing(request: directory_pb2.CreateEntryRequest) -> Any:
        if request.path.startswith("/yy/") and not request.make_parents:
            raise errors.InvalidNamespace("/yy does not exist", missing="/yy", nearest="/")
        return _created(request)

    kdir.answers["DirectoryService.CreateEntry"] = missing
    ran = kdir("mkdir", "--plan", "/yy/a", "/yy/b")
    assert ran == Ran(0, "", "would make /yy, /yy/a\nwould make /yy/b\n")
    ran = kdir("mkdir", "--plan", "/x", "/x")
    assert ran.code == 5
    assert "/x is already made by this command (ALREADY_EXISTS)" in ran.err
    ran = kdir("mkdir", "-p", "--plan", "/x", "/x")
    assert ran == Ran(0, "", "would make /x\nunchanged: /x exists\n")
    assert kdir("create", "--plan", "/x", "/x").code == 5
    assert kdir("create", "--plan", "--if-not-exists", "/x", "/x").code == 0
    ran = kdir("rm", "-r", "--plan", "/search/", "/search/clicks", "/orders")
    assert ran.code == 1
    assert "/search/clicks is already removed by this command (ABSENT)" in ran.err
    assert "would remove topic /orders" in ran.err
    kdir.tree.topic("/orders/dlq")
    ran = kdir("rm", "-r", "--plan", "/orders", "/orders", "/orders/", "/orders/dlq")
    assert "would remove topic /orders" in ran.err
    assert "would remove directory /orders" in ran.err
    assert ran.err.count("(ABSENT)") == 2
    assert kdir("rm", "-r", "--plan", "/orders/", "/orders").code == 0


def test_what_contradicts_itself_is_refused(kdir: Kdir) -> None:
    assert kdir("create", "/a", "--wait", "--no-wait").code == 2
    for verb in (("set", "/orders"), ("mkdir", "/a", "--set")):
        more = () if verb[0] == "set" else ("--set",)
        ran = kdir(*verb, "retention.ms=1", *more, "topic_config.retention.ms=2")
        assert (ran.code, kdir.calls) == (2, [])
        message = "retention.ms was given twice: retention.ms=1 and topic_config.retention.ms=2"
        assert message in ran.err
    assert kdir("set", "/orders", "owner=a", "owner=a").code == 0


def test_targets_of_a_link_may_be_given_one_by_one(kdir: Kdir) -> None:
    assert kdir("set", "/search", "targets=/a", "mode=first", "targets=/b,/c").code == 0
    request = kdir.asked
    assert list(request.entry.link.targets) == ["/a", "/b", "/c"]
    assert list(request.update_mask.paths) == ["link.targets", "link.mode"]


def test_mkdir_of_an_existing_directory_names_what_is_not_set(kdir: Kdir) -> None:
    def existing(request: directory_pb2.CreateEntryRequest) -> Any:
        if not request.make_parents:
            raise errors.AlreadyExists("/search exists")
        answer = _created(request)
        answer.entry.policies.Clear()
        answer.entry.policies.contact = "ops"
        return answer

    kdir.answers["DirectoryService.CreateEntry"] = existing
    ran = kdir("mkdir", "-p", "/search", "--set", "owner=zzz", "--set", "contact=ops")
    notes = "unchanged: /search exists\nnot set at /search, which exists: owner=zzz\n"
    assert ran == Ran(0, "", notes)


@pytest.mark.parametrize(
    ("value", "example"),
    [
        ("retention.ms=0.5d", "12h"),
        ("retention.ms=12 h", "12h"),
        ("retention.bytes=1.5GiB", "1536MiB"),
    ],
)
def test_a_quantity_that_is_no_whole_number_is_answered_with_one(
    kdir: Kdir, value: str, example: str
) -> None:
    ran = kdir("set", "/orders", value)
    assert (ran.code, kdir.calls) == (2, [])
    expected = f"{value}: a whole number and a unit such as {example} was expected"
    assert expected in ran.err


def test_mkdir_makes_the_tiers_above_where_they_are_missing(kdir: Kdir) -> None:
    def missing_once(request: directory_pb2.CreateEntryRequest) -> Any:
        if not request.make_parents:
            raise errors.InvalidNamespace("/a does not exist", missing="/a", nearest="/")
        return _created(request)

    kdir.answers["DirectoryService.CreateEntry"] = missing_once
    assert kdir("mkdir", "/a/b/c") == Ran(0, "", "made /a, /a/b, /a/b/c\n")
    assert [one.make_parents for one in kdir.calls] == [False, True]


def test_mkdir_asks_before_it_makes_a_tier_that_looks_like_a_typo(kdir: Kdir) -> None:
    def missing_once(request: directory_pb2.CreateEntryRequest) -> Any:
        if request.make_parents:
            return _created(request)
        raise errors.InvalidNamespace(
            "no", missing="/la/trakcing", nearest="/la", metadata={"similar": "/la/tracking"}
        )

    kdir.answers["DirectoryService.CreateEntry"] = missing_once
    refused = kdir("mkdir", "-p", "/la/trakcing/x")
    assert refused.code == 2
    assert "/la/trakcing" in refused.err
    assert "--yes" in refused.err
    assert "/la/tracking, with almost" in kdir("mkdir", "/la/trakcing/x", terminal=True).err
    assert [one.make_parents for one in kdir.calls] == [False, False]
    assert "made /la/trakcing, /la/trakcing/x" in kdir("mkdir", "-y", "/la/trakcing/x").err
    asked = kdir("mkdir", "/la/trakcing/x", terminal=True, stdin="y\n")
    assert "made /la/trakcing, /la/trakcing/x" in asked.err


@pytest.mark.parametrize(
    ("name", "other", "is_typo"),
    [
        ("trakcing", "tracking", True), ("serch", "search", True), ("orderss", "orders", True),
        ("v1", "v2", False), ("orders-1", "orders-2", False), ("ads", "ops", False),
        ("tracking", "metrics", False), ("orders", "", False),
    ],
)  # fmt: skip
def test_a_typo_is_one_or_two_letters(name: str, other: str, is_typo: bool) -> None:
    assert is_likely_typo(name, other) is is_typo


def test_mkdir_of_what_exists_is_a_conflict(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.CreateEntry"] = errors.AlreadyExists("/a exists", path="/a")
    ran = kdir("mkdir", "/a")
    assert ran.code == 5
    assert ran.err == ("error: /a exists (ALREADY_EXISTS)\n  existing entry: kdir stat /a\n")


def test_mkdir_p_of_what_exists_claims_nothing(kdir: Kdir) -> None:
    def existing(request: directory_pb2.CreateEntryRequest) -> Any:
        if not request.make_parents:
            raise errors.AlreadyExists("/a exists", path="/a")
        return _created(request)

    kdir.answers["DirectoryService.CreateEntry"] = existing
    assert kdir("mkdir", "-p", "/a") == Ran(0, "", "unchanged: /a exists\n")


def test_mkdir_with_policies(kdir: Kdir) -> None:
    ran = kdir(
        "mkdir", "/a", "/b", "--set", "owner=search", "--set", "retention.ms=7d", "-o", "name"
    )
    assert ran == Ran(0, "/a/\n/b/\n", "")
    assert kdir.asked.entry.policies.owner == "search"
    assert kdir.asked.entry.policies.topic_config["retention.ms"].value == "604800000"


def test_of_several_paths_one_that_fails_stops_none(kdir: Kdir) -> None:
    def not_the_first(request: directory_pb2.CreateEntryRequest) -> Any:
        if request.path == "/a":
            raise errors.AlreadyExists("/a exists")
        return _created(request)

    kdir.answers["DirectoryService.CreateEntry"] = not_the_first
    ran = kdir("mkdir", "/a", "/b")
    assert ran.code == 5
    assert "made /b" in ran.err


def test_of_several_paths_one_that_is_wrongly_used_stops_none(kdir: Kdir) -> None:
    ran = kdir("rm", "-y", "/orders", "/search", "/search/clicks")
    assert ran.code == 2
    removed = [one.path for one in kdir.calls if not one.validate_only]
    assert removed == ["/orders", "/search/clicks"]
    assert "error: /search is a directory: kdir rm -r /search\n  kdir rm --help" in ran.err


def test_an_option_that_is_wrong_for_several_paths_is_reported_once(kdir: Kdir) -> None:
    ran = kdir("mkdir", "/a", "/b", "--set", "owner")
    assert (ran.code, kdir.calls) == (2, [])
    assert ran.err.count("error: ") == 1


def test_create_asks_for_what_was_given_and_waits(kdir: Kdir) -> None:
    ran = kdir("create", "/search/x", "-p", "24", "--replication-factor", "3", "--physical", "x.y")
    assert ran == Ran(0, "", "created /search/x: topic x.y of la\n")
    topic = kdir.asked.entry.topic
    assert (topic.partitions, topic.replication_factor, topic.physical_name) == (24, 3, "x.y")
    assert kdir.asked.wait_until_active
    assert not kdir.asked.validate_only


def test_create_names_the_other_physical_name(kdir: Kdir) -> None:
    def other(request: directory_pb2.CreateEntryRequest) -> Any:
        answer = _created(request)
        answer.authority.cluster.mount = "/"
        answer.entry.topic.physical_name = "search.x.2"
        return answer

    kdir.answers["DirectoryService.CreateEntry"] = other
    ran = kdir("create", "/search/x")
    assert ran.code == 0
    assert "its name in Kafka is search.x.2, not search.x, which is taken" in ran.err
    assert "kdir ls --detached /search" in ran.err
    assert "not search" not in kdir("create", "/search/x", "--physical", "search.x.2").err


def test_create_that_is_still_pending_is_3(kdir: Kdir) -> None:
    def pending(request: directory_pb2.CreateEntryRequest) -> Any:
        answer = _created(request)
        answer.entry.topic.provision = entry_pb2.PROVISION_PENDING
        return answer

    kdir.answers["DirectoryService.CreateEntry"] = pending
    ran = kdir("create", "/search/x")
    assert ran.code == 3
    assert "pending: Kafka has not created search.x yet" in ran.err
    assert kdir("create", "--no-wait", "/search/x").code == 0


@pytest.mark.parametrize(
    ("provision", "options", "code", "text"),
    [
        (entry_pb2.PROVISION_ACTIVE, [], 0, "unchanged: /orders exists: topic orders of la"),
        (entry_pb2.PROVISION_FAILED, [], 5, "/orders: invalid config (KAFKA_REJECTED)"),
        (entry_pb2.PROVISION_FAILED, ["--no-wait"], 5, "invalid config (KAFKA_REJECTED)"),
        (entry_pb2.PROVISION_PENDING, [], 3, "pending: Kafka has not created orders yet"),
        (entry_pb2.PROVISION_PENDING, ["--no-wait"], 0, "unchanged: /orders exists"),
        (entry_pb2.PROVISION_PENDING, ["--plan"], 0, "unchanged: /orders exists"),
        (entry_pb2.PROVISION_MISSING, [], 3, "missing: Kafka does not have orders any more"),
        (entry_pb2.PROVISION_REPLACED, [], 3, "replaced: Kafka has another topic orders by now"),
    ],
)
def test_create_if_not_exists_is_no_success_where_kafka_does_not_have_the_topic(
    kdir: Kdir, provision: Any, options: list[str], code: int, text: str
) -> None:
    found = directory_pb2.GetEntryResponse(entry=entry_pb2.Entry(path="/orders"))
    found.authority.cluster.cluster = "la"
    found.entry.topic.MergeFrom(
        entry_pb2.Topic(
            physical_name="orders", provision=provision, provision_message="invalid config"
        )
    )
    kdir.answers["DirectoryService.CreateEntry"] = errors.AlreadyExists("/orders exists")
    kdir.answers["DirectoryService.GetEntry"] = found
    ran = kdir("create", "--if-not-exists", "/orders", *options)
    assert (ran.code, text in ran.err) == (code, True), ran.err


def test_create_if_not_exists_with_wait_waits_for_kafka(kdir: Kdir) -> None:
    states = iter([entry_pb2.PROVISION_PENDING, entry_pb2.PROVISION_ACTIVE])

    def found(request: directory_pb2.GetEntryRequest) -> directory_pb2.GetEntryResponse:
        topic = entry_pb2.Topic(physical_name="orders", provision=next(states))
        entry = entry_pb2.Entry(path=request.path, topic=topic)
        return directory_pb2.GetEntryResponse(entry=entry)

    kdir.answers["DirectoryService.CreateEntry"] = errors.AlreadyExists("/orders exists")
    kdir.answers["DirectoryService.GetEntry"] = found
    ran = kdir("create", "--if-not-exists", "--wait", "/orders")
    assert (ran.code, "pending" in ran.err) == (0, False), ran.err


def test_create_in_no_directory_says_how_to_make_it(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.CreateEntry"] = errors.InvalidNamespace(
        "/la/trakcing does not exist; the nearest directory that does is /la; did you mean …?",
        missing="/la/trakcing",
        nearest="/la",
        similar="/la/tracking",
    )
    ran = kdir("create", "/la/trakcing/x")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "error: /la/trakcing does not exist (INVALID_NAMESPACE)",
        "  did you mean /la/tracking? its content: kdir ls /la/tracking",
        "  nearest directory above: /la",
        "  to create it: kdir mkdir /la/trakcing",
    ]


def test_a_directory_that_is_hidden_is_not_named_as_the_nearest_to_itself(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.CreateEntry"] = errors.InvalidNamespace(
        "/la does not exist; the nearest directory that does is /la", missing="/la", nearest="/la"
    )
    ran = kdir("mkdir", "/la/x")
    assert ran.err.splitlines() == ["error: /la does not exist (INVALID_NAMESPACE)"]


@pytest.mark.parametrize("verb", ["grant", "revoke", "check"])
@pytest.mark.parametrize("host", ["--host=", "--host= "])
def test_no_host_is_not_every_host(kdir: Kdir, verb: str, host: str) -> None:
    ran = kdir(verb, "alice", "read", "/la", host)
    assert (ran.code, kdir.calls) == (2, [])
    assert "error: --host '': " in ran.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "/a/"],
        ["create", "/a", "/b", "--physical", "x"],
        ["create", "/a", "-p", "many"],
        ["mkdir", "/a", "--set", "owner"],
        ["mkdir", "/a", "--set", "ownr=x"],
        ["mkdir", "/a", "--set", "max_topics=some"],
        ["set", "/a", f"max_topics={2**64}"],
        ["set", "/a", "retention.ms=7x"],
        ["set", "/a", "read_only=perhaps"],
        ["set", "/a", "targets=/b", "owner=x"],
        ["set", "/a", "mode=both"],
        ["unset", "/a", "closed"],
        ["unset", "--clear", "/a", "owner"],
        ["mount", "/a"],
        ["adopt", "/a"],
        ["adopt", "/a", "--topic", "x", "--map", "y"],
        ["rm", "/search"],
        ["create", "-p", "0", "/a"],
        ["find", "x", "--limit", "0"],
        ["history", "-n", "0", "/a"],
        ["grow", "/search"],
        ["grow", "/search", "--to", "0"],
        ["grow", "/search", "--to", "9999999999"],
    ],
)
def test_what_makes_no_sense_is_2_and_changes_nothing(kdir: Kdir, arguments: list[str]) -> None:
    ran = kdir(*arguments)
    assert ran.code == 2
    assert ran.err.startswith("error: ")
    assert kdir.calls == []


def test_plan_only_validates(kdir: Kdir) -> None:
    assert kdir("mkdir", "--plan", "/a").err == "would make /a\n"
    assert kdir("create", "--plan", "/x").err == "would create /x: topic x of la\n"
    assert all(one.validate_only for one in kdir.calls)


def test_ln(kdir: Kdir) -> None:
    ran = kdir("ln", "/search", "/orders", "/both", "--union", "--writes-follow")
    assert ran.err == "made link /both → /search, /orders\n"
    link = kdir.asked.entry.link
    assert list(link.targets) == ["/search", "/orders"]
    assert (link.mode, link.writes) == (entry_pb2.LINK_MODE_UNION, entry_pb2.LINK_WRITES_FOLLOW)
    kdir("ln", "/search", "/one")
    assert kdir.asked.entry.link.mode == entry_pb2.LINK_MODE_FIRST


def test_ln_to_an_absent_path_is_made_with_a_note(kdir: Kdir) -> None:
    ran = kdir("ln", "/search", "/nope", "/one")
    assert ran.code == 0
    assert ran.err.splitlines() == [
        "made link /one → /search, /nope",
        "/nope is absent: the link leads nowhere until it is made",
    ]


def test_a_backup_of_a_path_that_is_absent_names_the_option_of_the_file(kdir: Kdir) -> None:
    ran = kdir("backup", "/nope/file")
    assert ran.code == 2
    assert "a file is named by --to /nope/file" in ran.err
    assert kdir.calls == []
    kdir.tree.link("/dead", "/nowhere")
    assert "is no path of the tree" not in kdir("backup", "/dead").err


def test_a_path_that_is_absent_is_not_verified(kdir: Kdir) -> None:
    ran = kdir("verify", "/nope")
    assert ran.code == 2
    assert "/nope is no path of the tree (PATH selects the cluster)" in ran.err
    assert kdir.calls == []
    assert "is no path of the tree" not in kdir("verify", "/orders").err


def test_ack_where_nothing_is_stopped_names_its_option(kdir: Kdir) -> None:
    answer = admin_pb2.GetStatusResponse()
    answer.authority.cluster.cluster = "la"
    kdir.answers["AdminService.GetStatus"] = answer
    ran = kdir("ack", "/", "--stopped", "6 of 47")
    assert ran.code == 2
    assert "--stopped: la is not stopped" in ran.err
    assert len(kdir.calls) == 1, "nothing is acknowledged"


def test_mount_names_the_child(kdir: Kdir) -> None:
    ran = kdir("mount", "/geo", "--child", "kc-geo", "--endpoints", "g:1,g:2")
    assert ran.code == 0
    assert kdir.asked.entry.mount.cluster_id == "kc-geo"
    assert list(kdir.asked.entry.mount.endpoints) == ["g:1", "g:2"]


# -- more partitions -----------------------------------------------------------------------------


def _grown(request: directory_pb2.UpdateEntryRequest) -> directory_pb2.UpdateEntryResponse:
    """Answers as the owner of an armed topic of one partition does."""
    answer = _updated(request)
    if request.path.endswith("held"):
        answer.plan.armed, answer.plan.held_topic_count = True, 1
    if request.path.endswith("clicks"):
        calls = answer.plan.kafka_calls
        after = str(request.entry.policies.partitions)
        calls.add(operation="CreatePartitions", resource="clicks", before="1", after=after)
    return answer


def test_partitions_of_a_topic_grow_only_when_the_caller_means_it(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.UpdateEntry"] = _grown
    ran = kdir("set", "/search/clicks", "partitions=8")
    assert ran.code == 2
    assert "to grow clicks from 1 to 8 partitions needs --yes" in ran.err
    assert "nothing was changed. This cannot be undone, and keyed data changes place" in ran.err
    ran = kdir("set", "/search/clicks", "partitions=8", terminal=True, stdin="n\n")
    assert "This cannot be undone, and keyed data changes place [y/N]" in ran.err
    assert "unchanged: /search/clicks" in ran.err
    assert all(one.validate_only for one in kdir.calls)
    assert "This cannot be undone" in kdir("set", "/search/clicks", "partitions=8", "--plan").err
    assert kdir("set", "/search/clicks", "partitions=8", "--yes").code == 0
    assert not kdir.asked.validate_only


def test_what_a_directory_sets_is_named_as_for_new_topics(kdir: Kdir) -> None:
    ran = kdir("set", "/search/", "partitions=8")
    assert ran.code == 0
    assert "of new topics: those that exist keep their partitions" in ran.err
    assert "kdir grow" in ran.err


def test_fewer_partitions_than_a_topic_has_are_warned_of(kdir: Kdir) -> None:
    def update(request: directory_pb2.UpdateEntryRequest) -> directory_pb2.UpdateEntryResponse:
        answer = _updated(request)
        answer.entry.topic.partitions = 6
        return answer

    kdir.answers["DirectoryService.UpdateEntry"] = update
    kept = "Kafka keeps the 6 partitions: a topic never gets fewer"
    assert kept in kdir("set", "/orders", "partitions=3").err
    assert kept not in kdir("set", "/orders", "partitions=6").err


def test_a_value_that_was_there_already_is_not_shown_as_unarmed(kdir: Kdir) -> None:
    ran = kdir("set", "/search/", "retention.ms=7d")
    assert ran.err.splitlines()[-1] == "nothing in Kafka changes"


def test_grow_names_the_mount_to_arm_and_not_what_has_no_kafka(kdir: Kdir) -> None:
    def update(request: directory_pb2.UpdateEntryRequest) -> directory_pb2.UpdateEntryResponse:
        answer = _updated(request)
        answer.authority.cluster.mount = "/search"
        return answer

    kdir.answers["DirectoryService.UpdateEntry"] = update
    ran = kdir("grow", "/", "--to", "8", "--plan")
    assert "(kdir arm /search --aspect configs)" in ran.err


@pytest.mark.parametrize(
    ("state", "provision"),
    [
        ("pending", entry_pb2.PROVISION_PENDING),
        ("failed", entry_pb2.PROVISION_FAILED),
        ("missing", entry_pb2.PROVISION_MISSING),
        ("replaced", entry_pb2.PROVISION_REPLACED),
    ],
)
def test_grow_names_the_state_of_a_topic_that_kafka_does_not_have(
    kdir: Kdir, state: str, provision: entry_pb2.Provision
) -> None:
    def update(request: directory_pb2.UpdateEntryRequest) -> directory_pb2.UpdateEntryResponse:
        answer = _updated(request)
        answer.entry.topic.provision = provision
        return answer

    kdir.answers["DirectoryService.UpdateEntry"] = update
    ran = kdir("grow", "/search", "--to", "8", "--plan")
    assert f"{state} in Kafka (kdir stat PATH has the reason), left as they are: 1 topic" in ran.err
    assert "not armed" not in ran.err


def test_grow_shows_what_would_grow_and_asks(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.UpdateEntry"] = _grown
    kdir.tree.topic("/search/views")
    kdir.tree.topic("/search/held")
    ran = kdir("grow", "/search", "--to", "8", "--plan")
    assert ran.code == 0
    assert "/search/clicks" in ran.out
    assert "/search/views" not in ran.out
    assert "configs (kdir arm /search --aspect configs), left as they are: 1 topic" in ran.err
    held = "held back until approved (kdir arm /search --aspect configs): 1 topic"
    assert held in ran.err
    assert "would grow 1 topic. This cannot be undone, and keyed data changes place" in ran.err
    assert kdir("grow", "/search", "--to", "8").code == 2
    assert all(one.validate_only for one in kdir.calls)
    assert kdir("grow", "/search", "--to", "8", "--yes").code == 0
    assert [one.path for one in kdir.calls if not one.validate_only] == ["/search/clicks"]
    assert kdir.asked.entry.policies.partitions == 8
    assert "has fewer than 8 partitions" in kdir("grow", "/orders", "--to", "8", "--yes").err


def test_grow_that_fails_half_way_names_each_topic_and_sums_up(kdir: Kdir) -> None:
    kdir.tree.topic("/search/a.clicks")
    kdir.tree.topic("/search/b.clicks")

    def update(request: directory_pb2.UpdateEntryRequest) -> directory_pb2.UpdateEntryResponse:
        if request.path == "/search/a.clicks" and not request.validate_only:
            raise errors.EtagMismatch("/search/a.clicks has changed since")
        return _grown(request)

    kdir.answers["DirectoryService.UpdateEntry"] = update
    ran = kdir("grow", "/search", "--to", "8", "--yes")
    assert ran.code == errors.EtagMismatch.exit_code
    assert "not grown: /search/a.clicks: /search/a.clicks has changed since (ETAG_MI" in ran.err
    assert "armed: 2 of 3 topics are being grown to 8 partitions" in ran.err
    made = [one for one in kdir.calls if not one.validate_only]
    assert [one.path for one in made] == ["/search/a.clicks", "/search/b.clicks", "/search/clicks"]


def test_grow_tries_no_more_topics_of_a_cluster_that_does_not_answer(kdir: Kdir) -> None:
    kdir.tree.topic("/search/a.clicks")

    def update(request: directory_pb2.UpdateEntryRequest) -> directory_pb2.UpdateEntryResponse:
        if not request.validate_only:
            raise errors.Unreachable("nobody listens there")
        return _grown(request)

    kdir.answers["DirectoryService.UpdateEntry"] = update
    ran = kdir("grow", "/search", "--to", "8", "--yes", "--wait")
    assert ran.code == errors.Unreachable.exit_code
    assert ran.err.count("nobody listens there (UNREACHABLE)") == 2
    assert "armed: 0 of 2 topics are being grown" in ran.err
    assert len({one.path for one in kdir.calls if not one.validate_only}) == 1


def test_grow_tries_topics_of_another_cluster_of_the_same_name(kdir: Kdir) -> None:
    endpoint = kdir.tree.cluster("/search/eu", "other")
    kdir.tree.topic("/search/eu/clicks")
    other = kdir.tree.at("/search/eu")
    other.name = kdir.tree.at("/").name
    silent = {"DirectoryService.UpdateEntry": errors.Unreachable("nobody listens there")}
    kdir.tree.transport.serve(endpoint, answering(silent, other.answer, []))
    kdir.answers["DirectoryService.UpdateEntry"] = _grown
    kdir.tree.topic("/search/z.clicks")
    ran = kdir("grow", "/search", "--to", "8", "--yes")
    assert ran.code == errors.Unreachable.exit_code
    assert ran.err.count("not grown: ") == 1
    assert "not grown: /search/eu/clicks: nobody listens there" in ran.err
    assert "armed: 2 topics are being grown" in ran.err


def test_grow_that_is_interrupted_sums_up(kdir: Kdir) -> None:
    def update(request: directory_pb2.UpdateEntryRequest) -> directory_pb2.UpdateEntryResponse:
        if not request.validate_only:
            raise KeyboardInterrupt
        return _grown(request)

    kdir.answers["DirectoryService.UpdateEntry"] = update
    ran = kdir("grow", "/search", "--to", "8", "--yes")
    assert ran.code == 130
    assert "armed: 0 of 1 topic are being grown" in ran.err


# -- --wait --------------------------------------------------------------------------------------


def _planned(request: directory_pb2.UpdateEntryRequest) -> directory_pb2.UpdateEntryResponse:
    """Answers as the owner of an armed topic whose config changes."""
    answer = _updated(request)
    answer.entry.topic.physical_name = "orders"
    answer.plan.armed = True
    answer.authority.cluster.cluster = "la"
    return answer


def test_wait_knows_what_is_set_by_the_names_that_kafka_has_for_it(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.UpdateEntry"] = _planned
    left = policies_pb2.PlanArmingResponse()
    left.calls.add(operation="Alter", resource="topic orders", key="preallocate")
    kdir.answers["PolicyService.PlanArming"] = left
    arguments = ("--wait", "--timeout", "0.3")
    ran = kdir("set", "/orders", "config.preallocate=true", *arguments)
    assert ran.code == 3
    assert "not in Kafka after 0.3 s: la: 1 topic (orders)" in ran.err
    ran = kdir("set", "/orders", "config.flush.ms=1", "tags.preallocate=x", *arguments)
    assert ran.code == 0, ran.err
    assert "nothing of flush.ms, tags.preallocate is left" in ran.err


def test_wait_ends_at_once_where_kafka_refused_all_that_is_left(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.UpdateEntry"] = _planned
    left = policies_pb2.PlanArmingResponse()
    refused = "remote storage is disabled"
    left.calls.add(operation="Alter", resource="orders", key="flush.ms", rejected=refused)
    left.calls.add(operation="Alter", resource="views", key="flush.ms")
    kdir.answers["PolicyService.PlanArming"] = left
    arguments = ("set", "/orders", "config.flush.ms=1", "--wait")
    ran = kdir(*arguments, "--timeout", "0.3")
    assert ran.code == 3, "the other one may come"
    del left.calls[1]
    started = time.monotonic()
    ran = kdir(*arguments)
    assert time.monotonic() - started < 10
    assert ran.code == 5
    assert f"error: la: 1 topic (orders): {refused} (KAFKA_REJECTED)" in ran.err


@pytest.mark.parametrize("verb", ["grant", "revoke"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_wait_for_acls_ends_at_once_where_kafka_refused_them(
    kdir: Kdir, verb: str, is_whole: bool
) -> None:
    refused = "topic orders: no such principal"
    left = policies_pb2.PlanArmingResponse()
    call = left.calls.add(operation="CreateAcls", resource="topic orders", rejected=refused)
    call.acl.principal = "User:alice"
    grants = grants_of("alice", ["read"])
    kdir.answers |= {
        "AccessService.AddGrants": access_pb2.AddGrantsResponse(added=grants),
        "AccessService.RemoveGrants": access_pb2.RemoveGrantsResponse(removed=grants),
        "PolicyService.PlanArming": errors.KafkaRejected(refused) if is_whole else left,
    }
    started = time.monotonic()
    ran = kdir(verb, "alice", "read", "/orders", "--wait")
    assert time.monotonic() - started < 10
    assert ran.code == errors.KafkaRejected.exit_code, ran.err
    assert f"{refused} (KAFKA_REJECTED)" in ran.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.AboveCeiling("the config does not allow it", ceiling="observe"), 0),
        (errors.AboveCeiling("there is no Kafka behind it", kafka="none"), 0),
        (errors.AboveCeiling("cluster ny manages this Kafka"), 3),
        (errors.Absent("/orders is no directory and no topic of this cluster"), 3),
    ],
)
def test_what_kafka_never_gets_from_here_is_not_done(
    kdir: Kdir, error: errors.KdirError, code: int
) -> None:
    kdir.answers["DirectoryService.UpdateEntry"] = _planned
    kdir.answers["PolicyService.PlanArming"] = error
    ran = kdir("set", "/orders", "config.flush.ms=1", "--wait", "--timeout", "0.3")
    assert ran.code == code, ran.err
    assert ("done: nothing of flush.ms is left" in ran.err) is (code == 0)
    waited = "" if isinstance(error, errors.AboveCeiling) else " after 0.3 s"
    assert (f"not in Kafka{waited}: la: {error.message}" in ran.err) is (code == 3)
    asked = [one for one in kdir.calls if isinstance(one, policies_pb2.PlanArmingRequest)]
    assert (len(asked) == 1) is isinstance(error, errors.AboveCeiling), "it would not change"


def test_an_interrupted_wait_ends_at_once(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.UpdateEntry"] = _planned
    is_over = threading.Event()

    def hang(_request: policies_pb2.PlanArmingRequest) -> policies_pb2.PlanArmingResponse:
        time.sleep(0.2)  # until the command waits for this thread
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        is_over.wait(20)
        return policies_pb2.PlanArmingResponse()

    kdir.answers["PolicyService.PlanArming"] = hang
    started = time.monotonic()
    try:
        assert kdir("set", "/orders", "flush.ms=1", "--wait").code == 130
        assert time.monotonic() - started < 10
    finally:
        is_over.set()


# -- rm ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("-r",), ("-r", "-y"), ("-r", "--plan")])
def test_rm_of_a_directory_removes_no_topic_that_is_there_alone(
    kdir: Kdir, flags: tuple[str, ...]
) -> None:
    ran = kdir("rm", *flags, "/orders/")
    assert ran.code == 1
    assert "/orders is a topic, not a directory (ABSENT)" in ran.err
    assert kdir.calls == []


def test_rm_removes_what_is_there_by_its_kind(kdir: Kdir) -> None:
    assert kdir("rm", "-y", "/orders").code == 0
    assert kdir.asked.kind == entry_pb2.ENTRY_KIND_TOPIC
    assert kdir("rm", "-y", "/link").code == 0
    assert kdir.asked.kind == entry_pb2.ENTRY_KIND_LINK
    assert kdir.asked.path == "/link"


def test_options_before_the_verb_count_whatever_the_rest_ends_with(kdir: Kdir) -> None:
    ran = kdir("rm", "-y", "--", "/orders")
    assert (ran.code, [one.path for one in kdir.calls[-1:]]) == (0, ["/orders"])
    before = len(kdir.calls)
    ran = kdir("rm", "-y", "/orders", "--etag")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "error: --etag needs a value: --etag ETAG")
    assert len(kdir.calls) == before


def test_rm_of_a_directory_wants_r(kdir: Kdir) -> None:
    ran = kdir("rm", "-r", "-y", "/search")
    assert ran.err == (
        "removed directory /search, with 3 topics and 1 directory below it "
        "(topics and data stay in Kafka)\n"
    )
    assert kdir.asked.recursive


def test_rm_asks_a_person_and_takes_no_for_no(kdir: Kdir) -> None:
    ran = kdir("rm", "-r", "/search", terminal=True, stdin="n\n")
    assert ran.code == 0
    assert "remove directory /search, with 3 topics" in ran.err
    assert "unchanged: /search" in ran.err
    assert [one.validate_only for one in kdir.calls] == [True]


def test_rm_asks_a_person_and_takes_yes_for_yes(kdir: Kdir) -> None:
    kdir("rm", "-r", "/search", terminal=True, stdin="yes\n")
    assert [one.validate_only for one in kdir.calls] == [True, False]


def test_rm_does_not_ask_with_y(kdir: Kdir) -> None:
    kdir("rm", "-y", "/orders", terminal=True)
    kdir("rm", "-y", "/orders")
    assert [one.validate_only for one in kdir.calls] == [False, False]


@pytest.mark.parametrize("stdin", ["", "n\n", "y\n"])
@pytest.mark.parametrize(
    ("arguments", "action"),
    [
        (["rm", "/orders"], "remove topic /orders"),
        (["rm", "-r", "/search"], "remove directory /search, with 3 topics"),
        (["umount", "/geo"], "unmount /geo"),
        (["parent", "detach", "--keep-inherited"], "detach la from its parent"),
    ],
)
def test_nothing_is_destroyed_where_nobody_can_be_asked(
    kdir: Kdir, arguments: list[str], action: str, stdin: str
) -> None:
    kdir.tree.cluster("/geo", "geo")
    ran = kdir(*arguments, stdin=stdin)
    assert ran.code == 2
    assert ran.err.startswith(f"error: to {action}")
    assert "needs --yes where there is no terminal to ask at; nothing was changed" in ran.err
    assert all(one.validate_only for one in kdir.calls)


def test_verbs_that_destroy_take_yes() -> None:
    """A new verb that does what cannot be undone belongs here, and into ``Session.approve``."""
    destroying = {verb.name for verb in every_verb() if verb.destroys}
    assert destroying == {
        "apply", "rm", "umount", "context", "features", "grow", "log", "migrate", "parent",
        "restore",
    }  # fmt: skip
    for verb in every_verb():
        assert (YES in verb.all_options()) == (verb.name in destroying)


def test_rm_plan_says_what_would_go(kdir: Kdir) -> None:
    assert kdir("rm", "-r", "--plan", "/search").err.startswith("would remove directory /search")
    assert [one.validate_only for one in kdir.calls] == [True]


def test_rm_of_a_mount_is_umounts_business(kdir: Kdir) -> None:
    kdir.tree.cluster("/geo", "geo")
    ran = kdir("rm", "-r", "/geo")
    assert ran.code == 2
    assert "kdir umount /geo" in ran.err


def test_umount_of_what_is_absent_asks_for_no_approval(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.DeleteEntry"] = errors.Absent("/nope does not exist")
    ran = kdir("umount", "/nope")
    assert ran.code == 1
    assert "/nope does not exist" in ran.err
    assert "--yes" not in ran.err
    assert kdir.asked.validate_only


def test_umount(kdir: Kdir) -> None:
    kdir.tree.cluster("/geo", "geo")
    assert kdir("umount", "--yes", "/geo").code == 0
    assert kdir.asked.kind == entry_pb2.ENTRY_KIND_MOUNT
    assert kdir.asked.path == "/geo"


# -- mv ------------------------------------------------------------------------------------------


def test_mv_into_a_directory_keeps_the_name(kdir: Kdir) -> None:
    def moved(request: directory_pb2.MoveEntryRequest) -> Any:
        topic = entry_pb2.Topic(physical_name="orders")
        entry = entry_pb2.Entry(path=request.new_path, topic=topic)
        return directory_pb2.MoveEntryResponse(entry=entry)

    kdir.answers["DirectoryService.MoveEntry"] = moved
    ran = kdir("mv", "/orders", "/search/")
    assert ran.err == "moved /orders to /search/orders; physical name unchanged (orders)\n"
    assert kdir("mv", "/orders", "/search/o").err.startswith("moved /orders to /search/o;")


# -- arm -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slash", ["", "/"])
def test_arm_means_the_directory_where_a_slash_follows_the_name(kdir: Kdir, slash: str) -> None:
    """A topic of the same name stands beside it, and is what the path alone means."""
    kdir.tree.topic("/x")
    kdir.tree.topic("/x/t")
    kdir.answers["PolicyService.PlanArming"] = lambda _: policies_pb2.PlanArmingResponse(
        plan_hash="p1"
    )
    kdir.answers["PolicyService.Arm"] = lambda _: policies_pb2.ArmResponse()
    shown = kdir("arm", f"/x{slash}", "--aspect", "configs")
    assert shown.code == 0
    assert f"kdir arm /x{slash} --aspect configs --plan p1" in shown.err
    assert kdir("arm", f"/x{slash}", "--aspect", "configs", "--plan", "p1").code == 0
    plan, arm = kdir.calls
    assert isinstance(plan, policies_pb2.PlanArmingRequest)
    assert isinstance(arm, policies_pb2.ArmRequest)
    assert arm.plan_hash == "p1"
    for asked in (plan, arm):
        assert (asked.path, asked.directory) == ("/x", bool(slash))


# -- set, unset ----------------------------------------------------------------------------------


def test_set_names_each_field_in_the_mask(kdir: Kdir) -> None:
    ran = kdir(
        "set", "/search", "owner=search", "read_only=yes", "max_topics=5", "tags.tier=2",
        "retention.ms=1d", "segment.bytes=1GiB", "config.preallocate=true", "producer.acks=1",
    )  # fmt: skip
    assert ran.code == 0
    assert "nothing in Kafka changes" in ran.err
    assert "tags.tier, retention.ms, segment.bytes, config.preallocate, producer.acks" in ran.err
    assert list(kdir.asked.update_mask.paths) == [
        "policies.owner",
        "policies.read_only",
        "policies.max_topics",
        "policies.tags.tier",
        "policies.topic_config.retention.ms",
        "policies.topic_config.segment.bytes",
        "policies.topic_config.preallocate",
        "policies.producer_defaults.acks",
    ]
    policies = kdir.asked.entry.policies
    assert (policies.owner, policies.read_only, policies.max_topics) == ("search", True, 5)
    assert policies.topic_config["retention.ms"].value == "86400000"
    assert policies.topic_config["segment.bytes"].value == "1073741824"
    assert policies.topic_config["preallocate"].value == "true"
    assert policies.producer_defaults["acks"].value == "1"


def test_set_of_a_links_own_settings_is_about_the_link(kdir: Kdir) -> None:
    assert kdir("set", "/link", "targets=/orders,/search", "mode=union").code == 0
    assert kdir.asked.kind == entry_pb2.ENTRY_KIND_LINK
    assert kdir.asked.path == "/link"
    assert list(kdir.asked.update_mask.paths) == ["link.targets", "link.mode"]


def test_set_of_a_policy_goes_through_a_link(kdir: Kdir) -> None:
    assert kdir("set", "/link", "owner=x").code == 0
    assert kdir.asked.path == "/search"


def test_unset_leaves_the_field_out_and_clear_ends_the_inheritance(kdir: Kdir) -> None:
    assert kdir("unset", "/search", "owner", "retention.ms").code == 0
    assert list(kdir.asked.update_mask.paths) == [
        "policies.owner", "policies.topic_config.retention.ms",
    ]  # fmt: skip
    assert not kdir.asked.entry.HasField("policies")
    assert kdir("unset", "--clear", "/search", "retention.ms").code == 0
    assert kdir.asked.entry.policies.topic_config["retention.ms"].cleared


def test_etag_is_handed_on(kdir: Kdir) -> None:
    kdir("set", "/search", "owner=x", "--etag", "1-1")
    assert kdir.asked.etag == "1-1"
    kdir.answers["DirectoryService.UpdateEntry"] = errors.EtagMismatch("changed since")
    assert kdir("set", "/search", "owner=x", "--etag", "1-1").code == 5


# -- adopt, ack ----------------------------------------------------------------------------------


def test_an_adoption_that_goes_on_says_how_far_it_is(kdir: Kdir, tmp_path: Path) -> None:
    kdir.answers["AdminService.AdoptTopics"] = admin_pb2.AdoptTopicsResponse(
        adoptions=[admin_pb2.Adoption(physical_name="a", path="/a", rule=1, action="move")],
        progress=admin_pb2.Progress(kind="adopt", path="/la", done=0, remaining=100_000),
        omitted_count=99_999,
    )
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = "*"\n')
    ran = kdir("adopt", "/", "--map", str(rules), "-o", "name")
    assert ran.lines == ["/a"]
    assert ran.err == (
        "99,999 more topics not listed\n"
        "continues in the background: move 1\n"
        "adopt /la: 100,000 left; follow it with kdir stat /la\n"
    )


def test_detached_topics_are_listed_and_taken_back(kdir: Kdir) -> None:
    kdir.answers["AdminService.AdoptTopics"] = admin_pb2.AdoptTopicsResponse(
        adoptions=[
            admin_pb2.Adoption(physical_name="a.b", action="detached"),
            admin_pb2.Adoption(physical_name="c", path="/c", action="keep"),
            admin_pb2.Adoption(physical_name="d", path="/search/x/d", action="detached"),
            admin_pb2.Adoption(physical_name="e", path="/e", action="detached"),
        ]
    )
    listed = kdir("ls", "--detached", "/")
    assert (listed.code, listed.lines) == (0, ["a.b\t-\tla", "d\t/search/x/d\tla", "e\t/e\tla"])
    assert kdir("ls", "--detached", "/", "-o", "name").lines == ["a.b", "d", "e"]
    assert kdir.asked.validate_only
    assert "kdir adopt / --detached" in listed.err
    taken = kdir("adopt", "/search", "--detached")
    assert taken.err.splitlines() == [
        "adopted a.b of la as /search/a.b",
        "the path that a.b had is not recorded",
        "adopted d of la as /search/x/d",
        "left: 1 topic that had paths elsewhere: kdir adopt / --detached",
    ]
    made = [one for one in kdir.calls if isinstance(one, directory_pb2.CreateEntryRequest)]
    assert [(one.path, one.adopt_existing) for one in made] == [
        ("/search/a.b", True),
        ("/search/x/d", True),
    ]
    both = kdir("adopt", "/search", "--detached", "--topic", "d")
    assert (both.code, "exactly one of --topic" in both.err) == (2, True)


def test_detached_topics_of_clusters_below_are_listed_where_there_is_no_kafka(kdir: Kdir) -> None:
    without = errors.InvalidArgument("cluster la has no Kafka", field="cluster", kafka="none")
    kdir.answers["AdminService.AdoptTopics"] = without
    ran = kdir("ls", "--detached")
    assert (ran.code, "clusters with topics of their own: kdir mounts" in ran.err) == (2, True)
    kdir.tree.cluster("/far", "far")
    ran = kdir("ls", "--detached")
    assert (ran.code, "not listed: far" in ran.err) == (3, True)


def test_a_detached_topic_is_not_taken_for_one_of_the_cluster_that_has_its_path_now(
    kdir: Kdir,
) -> None:
    kdir.tree.cluster("/far", "far")
    kdir.answers["AdminService.AdoptTopics"] = admin_pb2.AdoptTopicsResponse(
        adoptions=[
            admin_pb2.Adoption(physical_name="f", path="/far/f", action="detached"),
            admin_pb2.Adoption(physical_name="d", path="/search/d", action="detached"),
        ]
    )
    taken = kdir("adopt", "/", "--detached")
    assert taken.code == 3
    assert taken.err.splitlines() == [
        "not taken back: f of la: /far/f is of far now; elsewhere: kdir adopt PATH --topic f",
        "adopted d of la as /search/d",
    ]


@pytest.mark.parametrize("path", ["/orders", "/alias"])
def test_a_missing_topic_is_drift_also_through_a_link(kdir: Kdir, path: str) -> None:
    kdir.tree.link("/alias", "/orders")
    kdir.answers["DirectoryService.GetEntry"] = directory_pb2.GetEntryResponse()
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse()
    kdir.answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse(
        drifts=[admin_pb2.Drift(path="/orders", field="topic_id", actual="(missing)")]
    )
    ran = kdir("effective", "--diff", path)
    assert (ran.code, ran.out.split("\t")[0], "no drift" in ran.err) == (5, "/orders", False)


AWAY = {
    "leader": True,
    "message": "since 2026-11-01T12:00:00Z: no broker answered",
    "last_sweep_seconds": 400.0,
}
"""State of a Kafka that does not answer any more, at the elected server."""


def _status(*members: admin_pb2.Member, **kafka: Any) -> admin_pb2.GetStatusResponse:
    status = admin_pb2.GetStatusResponse(kafka=admin_pb2.KafkaStatus(**kafka), members=members)
    status.authority.cluster.cluster = "la"
    return status


@pytest.mark.parametrize("path", ["/orders", "/search"])
def test_without_an_answer_of_kafka_there_is_no_claim_of_no_drift(kdir: Kdir, path: str) -> None:
    entry = directory_pb2.GetEntryResponse()
    if path == "/search":
        entry.entry.directory.SetInParent()
    kdir.answers["DirectoryService.GetEntry"] = entry
    value = policies_pb2.EffectiveValue(field="topic_config[x.ms]", value="9", kafka_value="9")
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse(
        values=[value]
    )
    kdir.answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse()
    kdir.answers["AdminService.GetStatus"] = _status(**AWAY)
    ran = kdir("effective", "--diff", path)
    why = "la: Kafka did not answer when it was last read, since 2026-11-01T12:00:00Z: no broker"
    assert ran == Ran(3, "", f"{why} answered; the shown state is 6m old\n")
    kdir.answers["AdminService.GetStatus"] = _status(leader=True, message="since x: refused")
    assert "since x: refused; it was not read before" in kdir("effective", "--diff", path).err
    kdir.answers["AdminService.GetStatus"] = _status(leader=True, reachable=True)
    assert kdir("effective", "--diff", path) == Ran(0, "", "no drift: Kafka matches every value\n")


@pytest.mark.parametrize("path", ["/orders", "/search"])
def test_what_a_kafka_that_does_not_answer_has_is_unknown_and_no_drift(
    kdir: Kdir, path: str
) -> None:
    entry = directory_pb2.GetEntryResponse()
    if path == "/search":
        entry.entry.directory.SetInParent()
    kdir.answers["DirectoryService.GetEntry"] = entry
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse(
        values=[
            policies_pb2.EffectiveValue(
                field="topic_config[x.ms]", value="9", kafka_value="8", source_path="/orders"
            )
        ]
    )
    settings = [
        admin_pb2.Drift(path=path, field="config[x.ms]", expected="9", actual="8"),
        admin_pb2.Drift(path=path, field="acl", expected="x", actual="(missing)"),
    ]
    kdir.answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse(drifts=settings)
    kdir.answers["AdminService.GetStatus"] = _status(**AWAY)
    ran = kdir("effective", "--diff", path)
    found = [line.split("\t")[-1] for line in ran.lines]
    assert (ran.code, found) == (5, ["8  unknown", "(missing)  drift"])
    assert "the shown state is 6m old" in ran.err
    ran = kdir("effective", "/orders")
    assert (ran.code, ran.lines[0].split("\t")[-1]) == (0, "8  unknown")
    assert "the shown state is 6m old" in ran.err
    kdir.answers["AdminService.GetStatus"] = _status(leader=True, reachable=True)
    found = [line.split("\t")[-1] for line in kdir("effective", "--diff", path).lines]
    assert found == ["8  drift", "(missing)  drift"]


@pytest.mark.parametrize("in_kafka", ["8", "9"])
@pytest.mark.parametrize("layout", [[], ["-o", "json"]])
def test_an_assumed_value_makes_no_difference_known_that_is_not(
    kdir: Kdir, in_kafka: str, layout: list[str]
) -> None:
    kdir.answers["DirectoryService.GetEntry"] = directory_pb2.GetEntryResponse()
    value = policies_pb2.EffectiveValue(
        field="topic_config[x.ms]", value="9", kafka_value=in_kafka, source_path="/orders"
    )
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse(
        values=[value]
    )
    kdir.answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse()
    kdir.answers["AdminService.GetStatus"] = _status(**AWAY)
    for assumed in ([], ["--if", "owner=x"]):
        ran = kdir("effective", "--diff", "/orders", *assumed, *layout)
        assert (ran.code, "no drift" in ran.err) == (3, False)
        assert "the shown state is 6m old" in ran.err
    kdir.answers["AdminService.GetStatus"] = _status(leader=True, reachable=True)
    ran = kdir("effective", "--diff", "/orders", "--if", "owner=x", *layout)
    assert ran.code == (5 if in_kafka == "8" else 0)


@pytest.mark.parametrize("assumed", [[], ["--if", "owner=x"]])
@pytest.mark.parametrize(
    ("field", "source", "is_cleared", "expected"),
    [
        ("topic_config[x.ms]", "/", False, "nothing was compared: Kafka does not have this topic"),
        ("partitions", "/orders", False, "nothing was compared: Kafka does not have this topic"),
        ("partitions", "/", False, "no drift: nothing is set that Kafka could have otherwise"),
        ("topic_config[x.ms]", "/", True, "no drift: nothing is set that Kafka could have"),
        ("owner", "/orders", False, "no drift: nothing is set that Kafka could have otherwise"),
    ],
)
def test_a_topic_that_kafka_does_not_have_is_not_compared(
    kdir: Kdir, assumed: list[str], field: str, source: str, is_cleared: bool, expected: str
) -> None:
    kdir.answers["DirectoryService.GetEntry"] = directory_pb2.GetEntryResponse()
    value = policies_pb2.EffectiveValue(
        field=field, value="" if is_cleared else "9", cleared=is_cleared, source_path=source
    )
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse(
        values=[value]
    )
    kdir.answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse()
    kdir.answers["AdminService.GetStatus"] = _status(leader=True, reachable=True)
    ran = kdir("effective", "--diff", "/orders", *assumed)
    assert (ran.code, expected in ran.err) == (3 if "nothing was" in expected else 0, True)


def test_whether_kafka_answers_is_asked_of_the_elected_server(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.GetEntry"] = directory_pb2.GetEntryResponse()
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse()
    kdir.answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse()
    elected = admin_pb2.Member(endpoints=["127.0.0.1:20009"], roles=["reconciler"])
    kdir.answers["AdminService.GetStatus"] = _status(elected, message="another one knows")
    assert "la: not known whether its Kafka answers: " in kdir("effective", "--diff", "/orders").err
    kdir.tree.transport.serve("127.0.0.1:20009", lambda *_: _status(**AWAY))
    ran = kdir("effective", "--diff", "/orders")
    assert (ran.code, "no broker answered; the shown state is 6m old" in ran.err) == (3, True)
    kdir.tree.transport.serve("127.0.0.1:20009", lambda *_: _status(leader=True, reachable=True))
    assert kdir("effective", "--diff", "/orders").code == 0
    kdir.answers["AdminService.GetStatus"] = _status(message="another one knows")
    ran = kdir("effective", "--diff", "/orders")
    assert (ran.code, "no server is elected to read its Kafka" in ran.err) == (3, True)


@pytest.mark.parametrize("path", ["/orders", "/search"])
@pytest.mark.parametrize(
    ("elected_at", "code", "why"),
    [
        (AT, 0, "la-1, which is elected to read it, has no endpoint of its own, and la-2 answered"),
        ("127.0.0.1:20009", 3, "la-1 was elected to read it, and la-2 answered at its endpoint"),
        ("10.9.9.9:7420", 3, "la-1, which is elected to read it, may not be called: endpoint 10."),
    ],
)
def test_an_elected_server_that_does_not_answer_itself_is_not_none(
    kdir: Kdir, monkeypatch: pytest.MonkeyPatch, path: str, elected_at: str, code: int, why: str
) -> None:
    monkeypatch.setenv("KDIR_ALLOW", "127.0.0.0/8")
    entry = directory_pb2.GetEntryResponse()
    if path == "/search":
        entry.entry.directory.SetInParent()
    kdir.answers["DirectoryService.GetEntry"] = entry
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse()
    kdir.answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse()
    status = _status(
        admin_pb2.Member(server="la-1", endpoints=[elected_at], roles=["reconciler"]),
        admin_pb2.Member(server="la-2", endpoints=[AT]),
        message="another one knows",
    )
    status.authority.server = "la-2"
    kdir.answers["AdminService.GetStatus"] = status
    kdir.tree.transport.serve("127.0.0.1:20009", lambda *_: status)
    ran = kdir("effective", "--diff", path)
    assert (ran.code, f"la: not known whether its Kafka answers: {why}" in ran.err) == (code, True)
    assert "no server is elected" not in ran.err
    if elected_at != "10.9.9.9:7420":
        status.authority.server = "la-1"
        ran = kdir("effective", "--diff", path)
        assert (ran.code, "which is elected to read it, has not begun" in ran.err) == (3, True)


def test_a_topic_without_policies_is_not_taken_for_a_directory(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.GetEntry"] = directory_pb2.GetEntryResponse()
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse()
    kdir.answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse()
    kdir.answers["AdminService.GetStatus"] = _status(leader=True, reachable=True)
    assert kdir("effective", "--diff", "/orders") == Ran(
        0,
        "",
        "no policy applies to /orders: none is set on it or above it\n"
        "no drift: nothing is set that Kafka could have otherwise\n",
    )
    entry = directory_pb2.GetEntryResponse()
    entry.entry.directory.SetInParent()
    kdir.answers["DirectoryService.GetEntry"] = entry
    ran = kdir("effective", "--diff", "--if", "owner=x", "/search")
    assert "--diff with --if compares topics only: name one, or leave out --if" in ran.err


def test_a_difference_is_of_all_clusters_below_that_have_a_kafka(kdir: Kdir) -> None:
    entry = directory_pb2.GetEntryResponse()
    entry.entry.directory.SetInParent()
    without = errors.InvalidArgument("cluster la has no Kafka", field="cluster", kafka="none")
    kdir.answers["DirectoryService.GetEntry"] = entry
    kdir.answers["AdminService.ListDrift"] = without
    for line in ("/", "/search"):
        ran = kdir("effective", "--diff", line)
        assert (ran.code, ran.out) == (2, "")
        assert f"nothing to compare {line} with, and nothing was compared" in ran.err
    kdir.tree.cluster("/far", "far")
    far = kdir.tree.at("/far")
    drift = admin_pb2.Drift(path="/far/a", field="config[retention.ms]", expected="1", actual="2")
    answers: dict[str, Any] = {"AdminService.ListDrift": admin_pb2.ListDriftResponse()}
    kdir.tree.transport.serve(far.endpoint, answering(answers, far.answer, []))
    note = "not compared, without a Kafka: la\n"
    same = "no drift: Kafka matches every value\n"
    assert kdir("effective", "--diff", "/") == Ran(0, "", note + same)
    answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse(drifts=[drift])
    ran = kdir("effective", "--diff", "/")
    assert (ran.code, ran.err, ran.out.split("\t")[0]) == (5, note, "/far/a")


def test_whether_kafka_answers_is_asked_of_several_clusters_at_a_time(kdir: Kdir) -> None:
    both = threading.Barrier(2)

    def status(_: Any) -> admin_pb2.GetStatusResponse:
        both.wait(10)
        return _status(**AWAY)

    entry = directory_pb2.GetEntryResponse()
    entry.entry.directory.SetInParent()
    kdir.answers["DirectoryService.GetEntry"] = entry
    kdir.answers["AdminService.ListDrift"] = admin_pb2.ListDriftResponse()
    kdir.answers["AdminService.GetStatus"] = status
    kdir.tree.cluster("/far", "far")
    far = kdir.tree.at("/far")
    kdir.tree.transport.serve(far.endpoint, answering(kdir.answers, far.answer, []))
    ran = kdir("effective", "--diff", "/")
    assert (ran.code, ran.err.count("no broker answered")) == (3, 2)


def test_a_topic_of_a_cluster_without_kafka_is_not_compared(kdir: Kdir) -> None:
    kdir.answers["DirectoryService.GetEntry"] = directory_pb2.GetEntryResponse()
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse()
    kdir.answers["AdminService.ListDrift"] = errors.InvalidArgument(
        "cluster la has no Kafka", field="cluster", kafka="none"
    )
    ran = kdir("effective", "--diff", "/orders")
    assert (ran.code, ran.out, "no drift" in ran.err) == (2, "", False)
    assert "la has no Kafka: nothing to compare /orders with" in ran.err


def test_effective_of_nothing_says_so(kdir: Kdir) -> None:
    kdir.answers["PolicyService.GetEffectivePolicies"] = policies_pb2.GetEffectivePoliciesResponse()
    ran = kdir("effective", "/search")
    assert ran == Ran(0, "", "no policy applies to /search: none is set on it or above it\n")


def test_consume_from_the_end_needs_follow(kdir: Kdir) -> None:
    ran = kdir("consume", "/orders", "--from", "end")
    assert (ran.code, ran.out, kdir.calls) == (2, "", [])
    assert "needs -f" in ran.err


def test_adopt_by_a_map_shows_what_each_rule_does(kdir: Kdir, tmp_path: Path) -> None:
    kdir.answers["AdminService.AdoptTopics"] = admin_pb2.AdoptTopicsResponse(
        adoptions=[
            admin_pb2.Adoption(physical_name="a.b", path="/a/b", rule=1, action="adopt"),
            admin_pb2.Adoption(physical_name="c", action="ignore", rule=2),
            admin_pb2.Adoption(physical_name="d.e", path="/d/e", rule=3, action="keep"),
            admin_pb2.Adoption(physical_name="f", path="/f", action="flat"),
        ]
    )
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nmatch = "a.*"\nsplit_on = "."\n[[rule]]\nmatch = "c"\nignore = true\n'
    )
    ran = kdir("adopt", "/", "--map", str(rules), "--plan", "-o", "table")
    assert ran.lines == [
        "ACTION  TOPIC  PATH      RULE  REASON",
        "adopt   a.b    /a/b         1",
        "ignore  c      -            2",
        "keep    d.e    /d/e  split_on",
        "flat    f      /f           -",
    ]
    assert ran.err == "dry run: adopt 1, ignore 1, keep 1, flat 1\n"
    assert kdir.asked.validate_only
    assert [(one.match, one.split_on, one.ignore) for one in kdir.asked.rules] == [
        ("a.*", ".", False),
        ("c", "", True),
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "[[rule]] tables were expected"),
        ("[[rule]]", "rule 1: match"),
        ("[[rule]]\nmatch='a'\nspliton='.'", "did you mean 'split_on'?"),
        ("[[rule]]\nmatch='a'\nignore='yes'", "ignore: true or false"),
        ("[[rules]]\nmatch='a'", "[[rule]] tables"),
        ("=", "is not TOML"),
        (f"a = {'[' * 5_000}", "is not TOML"),
        (f"a = 1{'0' * 5_000}", "is not TOML"),
        (f"[[rule]]\nmatch = 0x{'f' * 4_000}", "not a number of 16000 bits"),
    ],
)
def test_a_wrong_map_is_one_sentence(kdir: Kdir, tmp_path: Path, text: str, complaint: str) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(text)
    ran = kdir("adopt", "/", "--map", str(rules))
    assert ran.code == 2
    assert complaint in ran.err
    assert kdir.calls == []


def test_a_map_from_stdin_that_is_no_text_is_one_sentence(kdir: Kdir) -> None:
    ran = kdir("adopt", "/", "--map", "-", stdin="[[rule]]\nmatch='\udcff'")
    assert (ran.code, kdir.calls) == (2, [])
    assert "-: is not TOML" in ran.err


def test_adopt_of_one_topic(kdir: Kdir) -> None:
    ran = kdir("adopt", "/search/c", "--topic", "clicks-v2")
    assert ran.err == "adopted clicks-v2 of la as /search/c\n"
    assert kdir.asked.adopt_existing
    assert kdir.asked.entry.topic.physical_name == "clicks-v2"


WHOLE = (
    "7 of 12 topics vanished from Kafka or changed their topic id at once: a, b; nothing is done "
    "until this is acknowledged"
)


def test_ack_wants_the_exact_reason_or_a_person(kdir: Kdir) -> None:
    status = admin_pb2.GetStatusResponse(
        kafka=admin_pb2.KafkaStatus(stop_reason="7 topics vanished")
    )
    status.authority.cluster.cluster = "la"
    kdir.answers["AdminService.GetStatus"] = status
    kdir.answers["AdminService.Acknowledge"] = admin_pb2.AcknowledgeResponse()
    ran = kdir("ack", "/")
    assert ran.code == 2
    assert "la has stopped: 7 topics vanished" in ran.err
    assert kdir("ack", "/", terminal=True, stdin="n\n").err.endswith("la is still stopped\n")
    assert not [one for one in kdir.calls if isinstance(one, admin_pb2.AcknowledgeRequest)]
    kdir("ack", "/", terminal=True, stdin="y\n")
    assert kdir.asked.stop_reason == "7 topics vanished"
    kdir("ack", "/", "--stopped", "another reason")
    assert kdir.asked.stop_reason == "another reason"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("7 of 12 topics vanished", WHOLE),  # as the help's example has it
        ("7 of 12", WHOLE),
        (WHOLE, WHOLE),
        ("7 of 1", "7 of 1"),  # no whole word: refused by the server
        ("7 of 13 topics vanished", "7 of 13 topics vanished"),
    ],
)
def test_ack_takes_the_beginning_of_the_reason(kdir: Kdir, given: str, sent: str) -> None:
    status = admin_pb2.GetStatusResponse(kafka=admin_pb2.KafkaStatus(stop_reason=WHOLE))
    kdir.answers["AdminService.GetStatus"] = status
    kdir.answers["AdminService.Acknowledge"] = admin_pb2.AcknowledgeResponse()
    assert kdir("ack", "/", "--stopped", given).code == 0
    assert kdir.asked.stop_reason == sent


def test_ack_of_what_is_not_stopped_does_nothing(kdir: Kdir) -> None:
    kdir.answers["AdminService.GetStatus"] = admin_pb2.GetStatusResponse()
    assert kdir("ack", "/").code == 0


# -- contexts ------------------------------------------------------------------------------------


def test_a_protected_context_is_changed_only_by_its_name(kdir: Kdir) -> None:
    assert run(["context", "set", "prod", "--servers", AT, "--protected"]).code == 0
    assert run(["context", "use", "prod"]).code == 0
    ran = kdir("mkdir", "/a")
    assert ran.code == 2
    assert "kdir mkdir --context prod" in ran.err
    assert kdir.calls == []
    assert kdir("mkdir", "--context", "prod", "/a").code == 0
    assert run(["ls", "/"], kdir.tree.transport).lines == ["link/", "orders", "search/"]


def test_contexts_are_listed(tmp_path: Path) -> None:
    run(["context", "set", "a", "--servers", "h:1,h:2"])
    run(["context", "set", "b", "--servers", "h:3", "--protected"])
    run(["context", "use", "b"])
    assert run(["context"]).lines == ["\ta\tno\th:1,h:2\t-", "*\tb\tyes\th:3\t-"]
    assert run(["context", "-o", "name"]).lines == ["a", "b"]
    assert run(["context", "-o", "json"]).objects[1] == {
        "name": "b", "servers": ["h:3"], "protected": True, "current": True,
    }  # fmt: skip
    run(["context", "set", "b", "--unprotected"])
    assert run(["context", "-o", "json"]).objects[1]["protected"] is False


@pytest.mark.parametrize(
    "arguments",
    [
        ["context", "use"],
        ["context", "use", "nosuch"],
        ["context", "set", "new"],
        ["context", "set", "new", "--servers", "nowhere"],
        ["context", "set", "new", "--servers", "h:1", "--protected", "--unprotected"],
        ["context", "list", "a"],
        ["context", "drop", "a"],
    ],
)
def test_wrong_arguments_about_contexts(arguments: list[str]) -> None:
    assert run(arguments).code == 2


# -- what was planned and what is written ----------------------------------------------------------


class _ChangingTopic:
    """Owner of a topic that is another by the time of the first write after its plan."""

    def __init__(self) -> None:
        self.entry = entry_pb2.Entry(
            path="/orders", entry_id=7, topic=entry_pb2.Topic(physical_name="orders")
        )
        self.before = "604800000"
        self.count = 1
        self.is_written = False

    def observe(self) -> None:
        """As the reconciler records what Kafka has."""
        self.entry.topic.observed_config["retention.ms"] = "1"

    def change(self) -> None:
        """As somebody else changes another policy."""
        self.entry.policies.owner = "else"

    def change_same(self) -> None:
        """As somebody else changes the same policy."""
        self.before = "1"

    def answer(self, request: directory_pb2.UpdateEntryRequest, happens: Any) -> Any:
        if not request.validate_only and not self.is_written:
            self.is_written, self.count = True, 2
            happens(self)
        etag = f"7-{self.count}"
        if request.etag not in ("", etag):
            raise errors.EtagMismatch("/orders has changed", path="/orders", etag=etag)
        answer = directory_pb2.UpdateEntryResponse(entry=self.entry)
        answer.plan.etag = etag
        answer.plan.policies.add(field="topic_config.retention.ms", before=self.before, after="9")
        return answer


@pytest.mark.parametrize(
    ("happens", "code"),
    [
        (_ChangingTopic.observe, 0),
        (_ChangingTopic.change, 5),
        (_ChangingTopic.change_same, 5),
    ],
)
def test_a_change_between_plan_and_write_conflicts_unless_the_reconciler_recorded_it(
    kdir: Kdir, happens: Any, code: int
) -> None:
    topic = _ChangingTopic()
    kdir.answers["DirectoryService.UpdateEntry"] = lambda asked: topic.answer(asked, happens)
    ran = kdir("set", "/orders", "retention.ms=9ms")
    assert ran.code == code, ran.err
    last = ("", True) if code else ("7-2", False)
    assert (kdir.asked.etag, kdir.asked.validate_only) == last
    assert kdir("set", "/orders", "retention.ms=9ms", "--etag", "7-1").code == 5


class _RemovedTopic:
    """Owner of ``/orders``, which is another entry by the time of the first write after a plan."""

    def __init__(self, entry: entry_pb2.Entry) -> None:
        self.entry = entry_pb2.Entry()
        self.entry.CopyFrom(entry)
        self.entry.etag = "1-1"
        self.removed: list[int] = []
        self.happens: Any = None

    def observe(self) -> None:
        self.entry.topic.observed_config["retention.ms"] = "1"
        self.entry.etag = "1-2"

    def replace(self) -> None:
        self.entry.entry_id, self.entry.etag = 99, "63-1"

    def delete(self, request: directory_pb2.DeleteEntryRequest) -> Any:
        if not request.validate_only and self.happens is not None:
            self.happens(self)
            self.happens = None
        if request.etag not in ("", self.entry.etag):
            raise errors.EtagMismatch("/orders has changed", path="/orders")
        answer = directory_pb2.DeleteEntryResponse(topic_count=1, kafka_topics_deleted=True)
        answer.plan.etag = self.entry.etag
        if not request.validate_only:
            self.removed.append(self.entry.entry_id)
        return answer


def _removed_topic(kdir: Kdir) -> _RemovedTopic:
    cluster = kdir.tree.deepest(_root())
    assert cluster is not None
    found = cluster.answer("ResolveService.Resolve", resolve_pb2.ResolveRequest(path="/orders"))
    owner = _RemovedTopic(found.outcome.resolution.entry)
    kdir.answers["DirectoryService.DeleteEntry"] = owner.delete
    kdir.answers["DirectoryService.GetEntry"] = lambda _: directory_pb2.GetEntryResponse(
        entry=owner.entry
    )
    return owner


def test_rm_removes_no_other_topic_than_the_one_that_was_approved(kdir: Kdir) -> None:
    owner = _removed_topic(kdir)
    owner.happens = _RemovedTopic.replace
    ran = kdir("rm", "/orders", terminal=True, stdin="y\n")
    assert (ran.code, owner.removed) == (5, []), ran.err
    assert "(ETAG_MISMATCH)" in ran.err


def test_rm_of_a_topic_whose_state_servers_record_meanwhile_is_no_conflict(kdir: Kdir) -> None:
    owner = _removed_topic(kdir)
    owner.happens = _RemovedTopic.observe
    ran = kdir("rm", "/orders", terminal=True, stdin="y\n")
    assert (ran.code, owner.removed) == (0, [owner.entry.entry_id]), ran.err


def test_rm_with_an_etag_sends_that_one(kdir: Kdir) -> None:
    _removed_topic(kdir)
    ran = kdir("rm", "/orders", "--etag", "1-1", terminal=True, stdin="y\n")
    assert (ran.code, kdir.asked.etag) == (0, "1-1"), ran.err


# -- a directory closed to oneself -----------------------------------------------------------------


def test_closing_a_directory_to_oneself_asks_first(kdir: Kdir) -> None:
    answer = directory_pb2.UpdateEntryResponse()
    answer.entry.path = "/d"
    answer.entry.directory.SetInParent()
    kdir.answers["DirectoryService.UpdateEntry"] = answer
    assert kdir("set", "/d", "closed=true").code == 0, "it closes it to others only"
    assert not kdir.asked.allow_lock_out
    answer.plan.locks_out = True
    answer.plan.etag = "1-2"
    refused = kdir("set", "/d", "closed=true")
    assert (refused.code, kdir.asked.validate_only) == (2, True)
    assert "to close /d needs --yes" in refused.err
    assert "You could not open it again" in refused.err
    kdir("set", "/d", "closed=true", "--yes")
    assert (kdir.asked.allow_lock_out, kdir.asked.etag) == (True, "1-2")


def test_making_a_directory_closed_to_oneself_takes_a_yes(kdir: Kdir) -> None:
    arguments = ["mkdir", "--closed", "/d"]
    kdir.answers["DirectoryService.CreateEntry"] = LocksOut("closing /d would lock User:ana out")
    refused = kdir(*arguments)
    assert refused.code == 5
    assert "(LOCKS_OUT)" in refused.err
    assert "repeat the command with --yes" in refused.err
    assert "kdir set" not in refused.err
    assert not kdir.asked.allow_lock_out
    kdir(*arguments, "--yes")
    assert kdir.asked.allow_lock_out


@pytest.mark.parametrize(
    ("given", "milliseconds"),
    [([], "30000"), (["--timeout", "3"], "3000"), (["-X", "delivery.timeout.ms=7000"], "7000")],
    ids=["default", "timeout", "setting"],
)
def test_produce_ends_where_brokers_are_away_within_its_timeout(
    given: list[str], milliseconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, str]] = []

    def refused(settings: dict[str, str]) -> None:
        seen.append(settings)
        raise KafkaException(KafkaError(KafkaError.INVALID_CONFIG))

    monkeypatch.setattr("confluent_kafka.Producer", refused)
    tree = MemoryDirectory()
    tree.cluster("/la", "la", bootstrap_servers="127.0.0.1:1")
    tree.topic("/la/t")
    assert run(["--at", AT, "produce", "/la/t", *given], tree.transport, stdin="m\n").code == 2
    (settings,) = seen
    assert settings["delivery.timeout.ms"] == milliseconds


def test_produce_to_the_directory_of_a_topics_name_is_refused() -> None:
    tree = MemoryDirectory()
    tree.cluster("/la", "la", bootstrap_servers="127.0.0.1:1")
    tree.topic("/la/t")
    tree.mkdir("/la/t")
    done = run(["--at", AT, "produce", "/la/t/"], tree.transport, stdin="m\n")
    assert (done.code, "/la/t is a directory, not a topic" in done.err) == (2, True)
