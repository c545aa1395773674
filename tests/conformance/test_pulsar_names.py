"""Names and life of directories and topics, by Pulsar's cases.

A tenant and a namespace are directories, a topic is a topic. Of ``pulsar_policies_and_names.json``
this driver runs ``name_cases``, ``lifecycle`` and ``policy_precedence``; ``policy_validation`` is
about values of settings that Kafka and kdir do not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pytest

from directory.namespace import physical_names
from directory.namespace.command import (
    AdoptTopics,
    CreateDirectory,
    CreateMount,
    CreateTopic,
    DeleteEntry,
    ObservedTopic,
    ReapDeleted,
    UpdateEntry,
)
from directory.namespace.entry import NO_POLICIES, Policies
from directory.namespace.protected_topics import is_protected
from directory.namespace.snapshot import Snapshot
from resolver.errors import (
    Absent,
    AlreadyExists,
    Conflict,
    InvalidNamespace,
    InvalidPath,
    KdirError,
    NotAuthoritative,
    QuotaExceeded,
)
from resolver.path import Path
from tests.conformance.cases import NOT_UNDERSTOOD, Row, cases, run, section_rows
from tests.conformance.precedence import check_precedence
from tests.support.trees import Cluster, path

_DOMAIN = re.compile(r"^(?:non-)?persistent://")
_PARTITION = {"partition_index", "is_partitioned", "partition_name"}


def read(text: str) -> Iterator[Row]:
    """Yields the rows of all sections, each with the name of its section."""
    return section_rows(text, {"sources"})


def category(row: Row) -> str | None:
    match row["section"]:
        case "name_cases":
            return name_category(row)
        case "lifecycle":
            return lifecycle_category(row["steps"])
        case "policy_precedence":
            return None
        case "policy_validation":
            return "pulsar-settings"
        case _:
            return NOT_UNDERSTOOD


def check(row: Row) -> None:
    """Holds kdir to one row."""
    if row["section"] == "name_cases":
        check_name(row)
    elif row["section"] == "policy_precedence":
        check_precedence(row)
    else:
        check_steps(row["steps"], row["expected"])


# -- names ---------------------------------------------------------------------------------------


def as_path(text: str) -> str:
    """Returns Pulsar's name as a kdir path would be written."""
    return "/" + _DOMAIN.sub("", text) if _DOMAIN.match(text) else text


def is_path(text: str) -> bool:
    try:
        Path.parse(text)
    except InvalidPath:
        return False
    return True


def name_category(row: Row) -> str | None:
    kind, given, expected = row["kind"], row["input"], row["expected"]
    match kind:
        case "parse_topic":
            if expected != "INVALID" and not _DOMAIN.match(given):
                return "default-tenant"
            levels = expected == "INVALID" and is_path(as_path(given))
            return "fixed-levels" if levels else None
        case "parse_namespace":
            levels = expected == "INVALID" and is_path("/" + given)
            return "fixed-levels" if levels else None
        case "parse_namespace_parts":
            return None
        case "encoded_local_name":
            return "url-encoding"
        case "from_storage_key":
            return "storage-keys"
        case "is_change_events_topic":
            return None
        case _ if kind in _PARTITION:
            return None if expected in (False, -1) else "partition-suffix"
        case _:
            return NOT_UNDERSTOOD


def local_name(text: str) -> str:
    return text.rsplit("/", 1)[-1]


def check_name(row: Row) -> None:
    kind, given, expected = row["kind"], row["input"], row["expected"]
    match kind:
        case "parse_topic" if expected == "INVALID":
            with pytest.raises(InvalidPath):
                Path.parse(as_path(given))
        case "parse_topic":
            parts = [expected[level] for level in ("tenant", "cluster", "namespace", "local")]
            wanted = tuple(part for part in parts if part is not None)
            assert Path.parse(as_path(given)).segments == wanted
        case "parse_namespace" if expected == "INVALID":
            with pytest.raises(InvalidPath):
                Path.parse("/" + given)
        case "parse_namespace":
            parts = [expected[level] for level in ("tenant", "cluster", "local")]
            wanted = tuple(part for part in parts if part is not None)
            assert Path.parse("/" + given).segments == wanted
        case "parse_namespace_parts" if expected == "INVALID":
            with pytest.raises(InvalidPath):
                Path.from_segments(part or "" for part in given)
        case "parse_namespace_parts":
            assert Path.from_segments(given).segments == tuple(given)
        case "is_change_events_topic":
            # Pulsar has a topic for each partition; Kafka has one, with partitions in it.
            name = re.sub(r"-partition-\d+$", "", local_name(given))
            assert is_protected(name) is expected
        case _:
            check_is_whole(local_name(given))


def check_is_whole(name: str) -> None:
    """Asserts that a name like one partition's is an ordinary name, or an invalid one."""
    if not is_path("/" + name):
        assert not physical_names.is_valid(name)
        return
    cluster = Cluster()
    cluster.do(CreateTopic(path=cluster.mount.child(name)))
    assert cluster.topic(f"/la/{name}").physical_name == name


# -- life: steps told in words, recognised by them ------------------------------------------------

_SEVERAL = {"an": 1, "a": 1, "one": 1, "two": 2, "three": 3, "third": 3}

Steps = Callable[[re.Match[str], str], None]


def lifecycle_category(steps: str) -> str | None:
    if _script(steps) is not None:
        return None
    for pattern, name in _BEYOND:
        if re.search(pattern, steps):
            return name
    return NOT_UNDERSTOOD


_BEYOND = (
    (r"limit \d+, create a \w+ namespace", "directory-quota"),
    (r"replication cluster", "replication-clusters"),
    (r"cache|compact|garbage|bundle|owner|redirect|unload|broker|policy writes", "broker-process"),
    (r"tenant", "fixed-levels"),
    (r"auto-creat|automatic", "broker-process"),
)


def _script(steps: str) -> tuple[Steps, re.Match[str]] | None:
    for pattern, script in _SCRIPTS:
        found = re.fullmatch(pattern, steps)
        if found:
            return script, found
    return None


def check_steps(steps: str, expected: str) -> None:
    script = _script(steps)
    assert script is not None, steps
    script[0](script[1], expected)


def outcome(expected: str) -> str:
    """Returns OK or ERROR, with which a row's expectation begins."""
    if expected.startswith(("OK", "true")):
        return "OK"
    assert expected.startswith("ERROR"), f"expected OK or ERROR, found {expected!r}"
    return "ERROR"


def does(cluster: Cluster, command: object, expected: str, *errors: type[KdirError]) -> None:
    """Asserts that the last step is done, or refused for one of these reasons."""
    if outcome(expected) == "OK":
        cluster.do(command)  # type: ignore[arg-type]
        return
    with pytest.raises(errors):
        cluster.do(command)  # type: ignore[arg-type]


def a_namespace(topics: int = 0, **policies: object) -> Cluster:
    cluster = Cluster()
    cluster.do(
        CreateDirectory(
            path=path("/la/tenant/ns"),
            make_parents=True,
            policies=Policies(**policies),  # type: ignore[arg-type]
        )
    )
    for number in range(topics):
        cluster.do(CreateTopic(path=path(f"/la/tenant/ns/t{number}")))
    return cluster


def delete_namespace(found: re.Match[str], expected: str) -> None:
    force = found["force"] == "true"
    count = found["topics"] or ""
    topics = int(count) if count.isdigit() else _SEVERAL.get(count, 2) if found["held"] else 0
    cluster = a_namespace(topics)
    command = DeleteEntry(path=path("/la/tenant/ns"), recursive=force)
    does(cluster, command, expected, Conflict)
    gone = outcome(expected) == "OK"
    assert (cluster.entry("/la/tenant/ns") is None) is gone
    if gone:
        while cluster.do(ReapDeleted()).writes:
            pass
        assert cluster.show() == "tenant/"


def delete_missing(found: re.Match[str], expected: str) -> None:
    does(Cluster(), DeleteEntry(path=path("/la/ns")), expected, Absent)


def delete_elsewhere(found: re.Match[str], expected: str) -> None:
    # Pulsar redirects; kdir says whose it is, and the client goes there.
    assert expected.startswith("REDIRECT"), expected
    cluster = Cluster()
    cluster.do(CreateMount(path=path("/la/other"), cluster_id="kc-other"))
    with pytest.raises(NotAuthoritative) as raised:
        cluster.do(DeleteEntry(path=path("/la/other/ns")))
    assert raised.value.metadata["cluster_id"] == "kc-other"


def create_existing(found: re.Match[str], expected: str) -> None:
    command = CreateDirectory(path=path("/la/tenant/ns"))
    does(a_namespace(), command, expected, AlreadyExists)


def create_new(found: re.Match[str], expected: str) -> None:
    does(a_namespace(), CreateDirectory(path=path("/la/tenant/other")), expected, Conflict)


def create_invalid(found: re.Match[str], expected: str) -> None:
    assert outcome(expected) == "ERROR"
    for name in ("a b", "a/", "", "a\u00fc", "..", "x" * 250):
        with pytest.raises(InvalidPath):
            path(f"/la/tenant/{name}")


def topic_again(found: re.Match[str], expected: str) -> None:
    does(a_namespace(topics=1), CreateTopic(path=path("/la/tenant/ns/t0")), expected, AlreadyExists)


def delete_missing_topic(found: re.Match[str], expected: str) -> None:
    does(a_namespace(), DeleteEntry(path=path("/la/tenant/ns/t0")), expected, Absent)


def create_in_nothing(found: re.Match[str], expected: str) -> None:
    does(Cluster(), CreateDirectory(path=path("/la/tenant/ns")), expected, InvalidNamespace)


def limit_of(found: re.Match[str]) -> int | None:
    """Returns the limit as kdir has it: to Pulsar zero is no limit, to kdir no topic."""
    return int(found["limit"]) or None


def quota(found: re.Match[str], expected: str) -> None:
    cluster = a_namespace(topics=int(found["have"]), max_topics=limit_of(found))
    if found["system"]:
        does(cluster, system_topic(found["system"]), expected)
    else:
        command = CreateTopic(path=path("/la/tenant/ns/more"))
        does(cluster, command, expected, QuotaExceeded)


def partition_quota(found: re.Match[str], expected: str) -> None:
    cluster = a_namespace(max_partitions=limit_of(found))
    have = ObservedTopic(
        physical_name="have", topic_id=b"h", partitions=int(found["have"]), replication_factor=1
    )
    cluster.do(AdoptTopics(topics=((("tenant", "ns", "have"), have),)))
    command = CreateTopic(path=path("/la/tenant/ns/more"), partitions=int(found["more"] or 1))
    does(cluster, command, expected, QuotaExceeded)


def quota_after_system(found: re.Match[str], expected: str) -> None:
    cluster = a_namespace(max_topics=limit_of(found))
    cluster.do(system_topic(found["system"]))
    for number in range(int(found["then"])):
        does(cluster, CreateTopic(path=path(f"/la/tenant/ns/t{number}")), expected, QuotaExceeded)


def system_topic(name: str) -> AdoptTopics:
    """Returns an adoption of a system's topic in Kafka, which kdir does not adopt and so does not
    count.
    """
    observed = ObservedTopic(physical_name=name, topic_id=b"s", partitions=6, replication_factor=1)
    return AdoptTopics(topics=((("tenant", "ns", name), observed),))


def which_is_system(found: re.Match[str], expected: str) -> None:
    asked = re.findall(r"(?:is (\S+?))(?: a system topic)?(?:;|$)", found[0])
    assert [str(is_protected(name)).lower() for name in asked] == expected.split("; ")


def policy_goes_with_topic(found: re.Match[str], expected: str) -> None:
    cluster = a_namespace(topics=1)
    where = path("/la/tenant/ns/t0")
    cluster.do(
        UpdateEntry(path=where, changes={"policies.owner": "somebody"}),
        DeleteEntry(path=where),
        CreateTopic(path=where),
    )
    is_unset = cluster.topic(str(where)).policies == NO_POLICIES
    assert expected == f"policy reads as {'unset' if is_unset else 'set'}"


def owner_in(snapshot: Snapshot, relative: Sequence[str]) -> str | None:
    topic = snapshot.topic(snapshot.find_directory(relative[:-1]) or 0, relative[-1])
    assert topic is not None
    return topic.policies.owner


def interleaved_updates(found: re.Match[str], expected: str) -> None:
    topics, levels, updates, changed = (int(number) for number in found.groups())
    cluster = Cluster()
    names = [f"/la/ns{number % levels}/t{number}" for number in range(topics)]
    for name in names:
        where = path(name)
        cluster.do(CreateDirectory(path=where.parent, make_parents=True), CreateTopic(path=where))
    last: dict[str, str] = {}
    for number in range(updates):
        name = names[number % changed]
        last[name] = f"owner {number}"
        cluster.do(UpdateEntry(path=path(name), changes={"policies.owner": last[name]}))
    is_last = all(
        owner_in(snapshot, path(name).below(cluster.mount)) == last.get(name)
        for snapshot in (cluster.snapshot, cluster.loaded())
        for name in names
    )
    write = "last write" if is_last else "another write"
    read = "is what both the cache and a bypass-cache read return"
    assert expected == f"{write} of each topic {read}"


_LEVEL = r"(?:namespace|directory)"
_SCRIPTS: tuple[tuple[str, Steps], ...] = (
    (
        (
            rf"delete \(force=(?P<force>true|false)\) an? (?:empty )?{_LEVEL}"
            rf"(?: (?:with|that has|that holds) (?:(?P<topics>\w+) )?(?P<held>topics?))?"
        ),
        delete_namespace,
    ),
    (
        (
            rf"delete (?:\(force=\w+\) )?an? {_LEVEL} that does ?n[o']t exist|"
            rf"delete (?:\(force=\w+\) )?a missing {_LEVEL}"
        ),
        delete_missing,
    ),
    (rf"delete an? {_LEVEL} whose replication cluster is another cluster", delete_elsewhere),
    (rf"create an? {_LEVEL} that (?:already )?exists", create_existing),
    (rf"create an? (?:new )?{_LEVEL}", create_new),
    (
        rf"create an? {_LEVEL} (?:with an invalid name|whose name is (?:invalid|not valid))",
        create_invalid,
    ),
    (r"create a topic that (?:already )?exists", topic_again),
    (r"delete a topic that does ?n[o']t exist", delete_missing_topic),
    (rf"create an? {_LEVEL} in a tenant that does ?n[o']t exist", create_in_nothing),
    (
        (
            r"limit (?P<limit>\d+)(?: topics)?, have (?P<have>\d+)(?: user)?(?: topics)?, "
            r"create (?:one more(?: user)?(?: topic)?|an? \w+ topic|"
            r"(?P<system>__\w+)(?: with \d+ partitions)?)"
        ),
        quota,
    ),
    (
        (
            r"limit (?P<limit>\d+) partitions, have (?P<have>\d+), "
            r"create (?:one more|a topic with (?P<more>\d+) partitions?)"
        ),
        partition_quota,
    ),
    (
        (
            r"limit (?P<limit>\d+), (?P<system>__\w+)(?: with \d+ partitions)? first, "
            r"then (?P<then>\d+) user topics"
        ),
        quota_after_system,
    ),
    (r"is \S+ a system topic(?:; is \S+)*", which_is_system),
    (r"set a policy, delete the topic", policy_goes_with_topic),
    (
        (
            rf"(\d+) topics? in (\d+) {_LEVEL}s?, then (\d+) interleaved updates on (\d+) topics?"
            rf"(?: without waiting)?"
        ),
        interleaved_updates,
    ),
)


@pytest.mark.parametrize(
    "row",
    cases("pulsar_policies_and_names", "pulsar_policies_and_names.json", read, category),
)
def test_row(row: Row) -> None:
    run(check, row)
