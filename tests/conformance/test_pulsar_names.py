"""Names and life of directories and topics, by Pulsar's cases.

A tenant and a namespace are directories, a topic is a topic. Of ``pulsar_policies_and_names.json``
this driver runs ``name_cases``, ``lifecycle`` and ``policy_precedence``; ``policy_validation`` is
about values of settings that Kafka and kdir do not have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

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
from tests.conformance.cases import (
    NOT_UNDERSTOOD,
    Row,
    assert_fields,
    assert_same,
    cases,
    run,
    section_rows,
)
from tests.conformance.precedence import check_precedence
from tests.support.trees import Cluster, path

_DOMAIN = re.compile(r"^(?:non-)?persistent://")
_PARTITION = re.compile(r"-partition-(0|[1-9][0-9]*)$")
_WHOLE = {"partition_index": -1, "is_partitioned": False}
"""What a kind of row expects of a name that is no partition's."""
_NAMESPACE = ("tenant", "cluster", "local")
_LEVELS = {
    "parse_topic": ("tenant", "cluster", "namespace", "local"),
    "parse_namespace": _NAMESPACE,
    "parse_namespace_parts": _NAMESPACE,
}
_WIDER = re.compile(r"[^/a-zA-Z0-9._-]")


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


def parsed(kind: str, given: Any) -> Path:
    """Parses one of Pulsar's names as the kdir path that it would be.

    Raises:
        InvalidPath: it would be none.
    """
    if kind == "parse_namespace_parts":
        return Path.from_segments(part or "" for part in given)
    name = given or ""
    if kind == "parse_topic":
        if not _DOMAIN.match(name):
            return Path.parse(name)
        name = _DOMAIN.sub("", name)
    return Path.parse(f"/{name}" if name else "")


def by_level(levels: Sequence[str], path: Path) -> Row:
    """Returns the segments of a path by level; Pulsar's names may do without a cluster."""
    segments: list[str | None] = list(path.segments)
    if len(segments) == len(levels) - 1:
        segments.insert(1, None)
    return dict(zip(levels, segments, strict=True))


def name_category(row: Row) -> str | None:
    kind, given, expected = row["kind"], row["input"], row["expected"]
    match kind:
        case "encoded_local_name":
            return "url-encoding"
        case "from_storage_key":
            return "storage-keys"
        case "is_change_events_topic":
            return None
        case "partition_name":
            return "partition-suffix"
        case _ if kind in _WHOLE:
            return "partition-suffix" if _PARTITION.search(given or "") else None
        case _ if kind in _LEVELS:
            return level_category(kind, given, expected)
        case _:
            return NOT_UNDERSTOOD


def level_category(kind: str, given: Any, expected: object) -> str | None:
    has_domain = kind != "parse_topic" or _DOMAIN.match(given or "")
    if expected != "INVALID" and not has_domain:
        return "default-tenant"
    try:
        count = len(parsed(kind, given))
    except InvalidPath:
        is_wider = expected != "INVALID" and _WIDER.search(_DOMAIN.sub("", "".join(given)))
        return "wider-names" if is_wider else None
    has_levels = has_domain and len(_LEVELS[kind]) - count in {0, 1}
    return "fixed-levels" if expected == "INVALID" and not has_levels else None


def local_name(text: str) -> str:
    return text.rsplit("/", 1)[-1]


def check_name(row: Row) -> None:
    kind, given, expected = row["kind"], row["input"], row["expected"]
    if kind == "is_change_events_topic":
        # Pulsar has a topic for each partition; Kafka has one, with partitions in it.
        name = re.sub(r"-partition-\d+$", "", local_name(given))
        assert is_protected(name) is expected
    elif kind in _WHOLE:
        check_is_whole(local_name(given or ""))
        assert_same(_WHOLE[kind], expected)
    elif expected == "INVALID":
        with pytest.raises(InvalidPath):
            parsed(kind, given)
    else:
        path = parsed(kind, given)
        found = by_level(_LEVELS[kind], path)
        if kind == "parse_topic":
            domain, parent = given.partition("://")[0], "/".join(path.segments[:-1])
            found["domain"] = domain
            found["canonical"] = f"{domain}://{parent}/{path.segments[-1]}"
            found["storage"] = f"{parent}/{domain}/{path.segments[-1]}"
        assert_fields(found, expected)


def check_is_whole(name: str) -> None:
    """Asserts that a name like one partition's is an ordinary name, or an invalid one."""
    cluster = Cluster()
    try:
        where = cluster.mount.child(name)
    except InvalidPath:
        assert not physical_names.is_valid(name)
        return
    cluster.do(CreateTopic(path=where))
    assert cluster.topic(f"/la/{name}").physical_name == name


# -- life: steps told in words, recognised by them ------------------------------------------------

_COUNTS = {None: 2, "some": 2, "no": 0, "zero": 0, "a": 1, "one": 1, "two": 2, "three": 3}

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
    (
        r"cache (is )?not \w+ed|\w+-cache|polic(y|ies) cache|(read|load) (the )?cache",
        "broker-process",
    ),
    (r"compact|garbage|unload|policy writes|auto-?creat|automatic", "broker-process"),
    (r"\b(bundle|owner|redirect|broker)", "broker-process"),
    (r"partition suffix|-partition-\d", "partition-suffix"),
    (r"^(list namespaces of|(create|delete|update) (\(force=\w+\) )?an?) tenant", "fixed-levels"),
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


_EXPECTED = re.compile(r"(?P<outcome>OK|ERROR)(?:_(?P<code>\d+))?(?:, (?P<note>.+))?")
_NOTES = {
    "OK": re.compile(
        r"(and )?it (leaves the( tenant)? listing|is gone)|system topics are not counted"
    ),
    "ERROR": re.compile(r"(and )?it stays( in the( tenant)? listing)?"),
}
_CODES: dict[type[KdirError], str] = {
    Absent: "404",
    AlreadyExists: "409",
    Conflict: "409",
    InvalidNamespace: "404",
    InvalidPath: "412",
    QuotaExceeded: "412",
}


def outcome(expected: str, error: type[KdirError] = Conflict) -> str:
    """Returns OK or ERROR, with which a row's expectation begins; what follows must fit it."""
    found = _EXPECTED.fullmatch(expected)
    assert found is not None, f"expected OK or ERROR, found {expected!r}"
    codes = {"200", "204"} if found["outcome"] == "OK" else {_CODES[error]}
    assert found["code"] is None or found["code"] in codes, f"{expected!r}: kdir's is {codes}"
    is_known = not found["note"] or _NOTES[found["outcome"]].fullmatch(found["note"])
    assert is_known, f"{found['note']!r} is no known part of {found['outcome']}"
    return found["outcome"]


def does(cluster: Cluster, command: object, expected: str, error: type[KdirError]) -> bool:
    """Asserts that the last step is done, or refused for this reason; returns whether it is."""
    if outcome(expected, error) == "OK":
        cluster.do(command)  # type: ignore[arg-type]
        return True
    with pytest.raises(error):
        cluster.do(command)  # type: ignore[arg-type]
    return False


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


NAMESPACE, TOPIC = "/la/tenant/ns", "/la/tenant/ns/t0"


def creation(where: str) -> CreateTopic | CreateDirectory:
    is_topic = where.startswith(f"{NAMESPACE}/")
    return CreateTopic(path=path(where)) if is_topic else CreateDirectory(path=path(where))


def absent_one(found: re.Match[str]) -> str:
    """Returns a path of the row's kind that no ``a_namespace()`` has."""
    return f"{NAMESPACE}/other" if found["what"] == "topic" else "/la/tenant/other"


def delete_namespace(found: re.Match[str], expected: str) -> None:
    count = found["count"] or None
    held = int(count) if count and count.isdigit() else _COUNTS[count]
    cluster = a_namespace(held if found["held"] else 0)
    command = DeleteEntry(path=path(NAMESPACE), recursive=found["force"] == "true")
    gone = does(cluster, command, expected, Conflict)
    assert (cluster.entry(NAMESPACE) is None) is gone
    if gone:
        while cluster.do(ReapDeleted()).writes:
            pass
        assert cluster.show() == "tenant/"


def delete_topic(found: re.Match[str], expected: str) -> None:
    cluster = a_namespace(topics=1)
    gone = does(cluster, DeleteEntry(path=path(TOPIC)), expected, Conflict)
    assert (cluster.entry(TOPIC) is None) is gone


def delete_missing(found: re.Match[str], expected: str) -> None:
    does(a_namespace(), DeleteEntry(path=path(absent_one(found))), expected, Absent)


def delete_elsewhere(found: re.Match[str], expected: str) -> None:
    # Pulsar redirects; kdir says whose it is, and the client goes there.
    assert re.fullmatch(r"REDIRECT(_307)?( to that cluster)?", expected), expected
    cluster = Cluster()
    cluster.do(CreateMount(path=path("/la/other"), cluster_id="kc-other"))
    with pytest.raises(NotAuthoritative) as raised:
        cluster.do(DeleteEntry(path=path("/la/other/ns")))
    assert raised.value.metadata["cluster_id"] == "kc-other"


def create_new(found: re.Match[str], expected: str) -> None:
    cluster, where = a_namespace(), absent_one(found)
    made = does(cluster, creation(where), expected, Conflict)
    assert (cluster.entry(where) is not None) is made


def create_existing(found: re.Match[str], expected: str) -> None:
    where = TOPIC if found["what"] == "topic" else NAMESPACE
    does(a_namespace(topics=1), creation(where), expected, AlreadyExists)


def create_invalid(found: re.Match[str], expected: str) -> None:
    assert outcome(expected, InvalidPath) == "ERROR"
    parent = NAMESPACE if found["what"] == "topic" else "/la/tenant"
    invalid = ("a b", "a/", "", "a\u00fc", "..", "x" * 250)
    for name in {"empty": ("",), "blank": (" ",)}.get(found["flaw"], invalid):
        with pytest.raises(InvalidPath):
            path(f"{parent}/{name}")


def create_in_nothing(found: re.Match[str], expected: str) -> None:
    where = NAMESPACE if found["what"] in {"namespace", "directory"} else TOPIC
    does(Cluster(), creation(where), expected, InvalidNamespace)


def limit_of(found: re.Match[str]) -> int | None:
    """Returns the limit as kdir has it: to Pulsar zero is no limit, to kdir no topic."""
    return int(found["limit"]) or None


def quota(found: re.Match[str], expected: str) -> None:
    cluster = a_namespace(topics=int(found["have"]), max_topics=limit_of(found))
    system, more = found["system"], CreateTopic(path=path("/la/tenant/ns/more"))
    does(cluster, system_topic(system) if system else more, expected, QuotaExceeded)


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
_WHAT = r"(?P<what>topic|namespace|directory)"
_FORCE = r"(?:\(force=(?P<force>true|false)\) )?"
_COUNT = rf"(?P<count>\d+|{'|'.join(filter(None, _COUNTS))})"
_MISSING = r"(?:missing|non-?existing)"
_IS_MISSING = r"that does ?n[o']t exist"
_SCRIPTS: tuple[tuple[str, Steps], ...] = (
    (
        (
            rf"delete {_FORCE}an? (?:empty )?{_LEVEL}"
            rf"(?: (?:with|that has|that holds) (?:{_COUNT} )?(?P<held>topics?)| without topics)?"
        ),
        delete_namespace,
    ),
    (rf"delete {_FORCE}a topic", delete_topic),
    (rf"delete {_FORCE}an? (?:{_MISSING} )?{_WHAT}(?: {_IS_MISSING})?", delete_missing),
    (rf"delete an? {_LEVEL} whose replication cluster is another cluster", delete_elsewhere),
    (rf"create an? (?:new )?{_WHAT}", create_new),
    (rf"create an? (?:existing )?{_WHAT}(?: that (?:already )?exists)?", create_existing),
    (
        (
            rf"create an? {_WHAT} "
            rf"(?:with an? (?P<flaw>invalid|empty|blank) name|whose name is (?:invalid|not valid))"
        ),
        create_invalid,
    ),
    (
        (
            rf"create (?:an? {_WHAT} )?"
            rf"in a (?:{_MISSING} (?:tenant|{_LEVEL})|(?:tenant|{_LEVEL}) {_IS_MISSING})"
        ),
        create_in_nothing,
    ),
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
