"""``kdir export`` and ``kdir apply``: round trips over a tree in memory, questions, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kdir.v1 import access_pb2, directory_pb2, entry_pb2

from resolver import errors
from resolver.access_requests import grant_text, grants_of
from resolver.cli.entry_documents import read_documents
from resolver.path import Path as KdirPath
from resolver.testing import MemoryDirectory
from tests.support.command_line import Ran, run
from tests.support.pages import blocks

pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")

AT = "127.0.0.1:20000"
SEARCH = """\
path: /la
kind: directory
policies: {owner: la, retention.ms: 7d, tags.tier: 1.10}
grants:
- {principal: ana, operations: [read, describe-configs], group: search-*}
- {principal: 'User:bob', operations: write, deny: true, host: "::FFFF:10.0.0.1"}
---
# a comment
---
path: /la/search/clicks
kind: topic
partitions: 6
policies: {retention.ms: null}
---
path: /la/search
kind: directory
policies: {closed: true, read_only: yes, max_topics: 5}
grants: []
---
path: /la/old
kind: link
targets: [/la/search, /ny/search]
mode: union
"""


class Kdir:
    """``kdir`` at a cluster in memory that takes writes; ``calls`` holds those that were made."""

    def __init__(self, folder: Path) -> None:
        self.tree = MemoryDirectory()
        self.tree.cluster("/", "la")
        self.cluster = self.tree.at("/")
        self.entries: dict[tuple[KdirPath, bool], entry_pb2.Entry] = {}
        """By path and whether it is a topic."""
        self.grants: dict[str, dict[str, access_pb2.Grant]] = {}
        self.calls: list[Any] = []
        self.plan = access_pb2.ChangePlan()
        self.failing: dict[str, Exception] = {}
        self.file = folder / "tree.yaml"
        self.tree.transport.serve(AT, self.answer)

    def __call__(self, *arguments: str, terminal: bool = False, stdin: str = "") -> Ran:
        self.calls.clear()
        return run(["--at", AT, *arguments], self.tree.transport, terminal=terminal, stdin=stdin)

    def apply(self, text: str, *options: str, **given: Any) -> Ran:
        self.file.write_text(text)
        return self("apply", str(self.file), *options, **given)

    @property
    def paths(self) -> list[str]:
        """Of what exists."""
        return sorted(str(path) for path, _ in self.entries)

    def add(self, path: str, entry: entry_pb2.Entry | None = None) -> entry_pb2.Entry:
        """Makes an entry, by default a directory, and the directories above it; returns it."""
        parsed = KdirPath.parse(path)
        for length in range(1, len(parsed)):
            above = "/" + "/".join(parsed.segments[:length])
            if (KdirPath.parse(above), False) not in self.entries:
                self.add(above)
        made = entry or entry_pb2.Entry(directory=entry_pb2.Directory())
        self.entries[parsed, made.HasField("topic")] = made
        self.cluster.put(parsed, made)
        return made

    def add_topic(self, path: str, partitions: int = 1) -> None:
        name = path.strip("/").replace("/", ".")
        topic = entry_pb2.Topic(physical_name=name, partitions=partitions)
        self.add(path, entry_pb2.Entry(topic=topic))

    def answer(self, method: str, request: Any) -> Any:
        name = method.partition(".")[2]
        handler = getattr(self, f"_{name}", None)
        if handler is None:
            return self.cluster.answer(method, request)
        if name not in {"ListGrants", "GetEntry"} and not request.validate_only:
            if request.path in self.failing:
                raise self.failing[request.path]
            self.calls.append(request)
        return handler(request)

    def _key(self, request: Any) -> tuple[KdirPath, bool]:
        key = KdirPath.parse(request.path), request.kind == entry_pb2.ENTRY_KIND_TOPIC
        if key not in self.entries:
            raise errors.Absent(f"{request.path} does not exist")
        return key

    def _CreateEntry(self, request: Any) -> Any:
        if "flush.mss" in request.entry.policies.topic_config:
            raise errors.InvalidArgument("flush.mss: did you mean flush.ms?")
        path = KdirPath.parse(request.path)
        above = self.entries.get((path.parent, False))
        if above is None and not path.parent.is_root:
            raise errors.InvalidNamespace(f"{path.parent} does not exist")
        if above is not None and above.policies.read_only:
            raise errors.ReadOnly(f"{path.parent} is read-only")
        entry = entry_pb2.Entry()
        entry.CopyFrom(request.entry)
        if entry.HasField("topic") and not entry.topic.physical_name:
            entry.topic.physical_name = request.path.strip("/").replace("/", ".")
        if not request.validate_only:
            self.add(request.path, entry)
        return directory_pb2.CreateEntryResponse(entry=entry)

    def _UpdateEntry(self, request: Any) -> Any:
        entry = self.entries[self._key(request)]
        if not request.validate_only:
            for mask in request.update_mask.paths:
                inside, name, key = (*mask.split(".", 2), "")[:3]
                ours, theirs = getattr(entry, inside), getattr(request.entry, inside)
                if key:
                    ours, theirs = getattr(ours, name), getattr(theirs, name)
                    ours.pop(key, None)
                    if key in theirs and name == "manage":
                        ours[key] = theirs[key]
                    elif key in theirs:
                        ours[key].CopyFrom(theirs[key])
                elif name == "targets":
                    ours.targets[:] = theirs.targets
                elif inside == "policies" and not theirs.HasField(name):
                    ours.ClearField(name)
                else:
                    setattr(ours, name, getattr(theirs, name))
        return directory_pb2.UpdateEntryResponse(entry=entry, plan=self.plan)

    def _GetEntry(self, request: Any) -> Any:
        response = directory_pb2.GetEntryResponse(entry=self.entries[self._key(request)])
        response.entry.path = request.path
        return response

    def _DeleteEntry(self, request: Any) -> Any:
        path, is_topic = self._key(request)
        if not request.validate_only:
            gone = [(path, is_topic)] if is_topic else [
                key for key in self.entries if path.is_prefix_of(key[0]) and key != (path, True)
            ]  # fmt: skip
            for key in gone:
                del self.entries[key]
            self.cluster.remove(path)
            for key in self.entries.keys() & {(path, False), (path, True)}:
                self.cluster.put(path, self.entries[key])
        return directory_pb2.DeleteEntryResponse(topic_count=1, directory_count=1)

    def _granted(self, request: Any) -> dict[str, access_pb2.Grant]:
        path, is_topic = self._key(request)
        return self.grants.setdefault(f"{path}{'' if is_topic else '/'}", {})

    def _ListGrants(self, request: Any) -> Any:
        return access_pb2.ListGrantsResponse(grants=self._granted(request).values())

    def _AddGrants(self, request: Any) -> Any:
        has = self._granted(request)
        added = [one for one in request.grants if grant_text(one) not in has]
        if not request.validate_only:
            has |= {grant_text(one): one for one in added}
        return access_pb2.AddGrantsResponse(added=added)

    def _RemoveGrants(self, request: Any) -> Any:
        has = self._granted(request)
        removed = [one for one in request.grants if grant_text(one) in has]
        if not request.validate_only:
            for one in removed:
                del has[grant_text(one)]
        return access_pb2.RemoveGrantsResponse(removed=removed)


@pytest.fixture
def kdir(tmp_path: Path) -> Iterator[Kdir]:
    kdir = Kdir(tmp_path)
    with kdir.tree:
        yield kdir


class _Once(dict[str, Exception]):
    """Errors of the next write of a path; ``meanwhile`` is what happened before it."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def __getitem__(self, path: str) -> Exception:
        self.meanwhile()
        return self.pop(path)


def actions(ran: Ran) -> list[str]:
    """Returns what was done, as ``set /la``, in order."""
    return [" ".join((row.split("\t")[0], row.split("\t")[2])) for row in ran.lines]


def test_a_tree_is_made_parents_first_and_once(kdir: Kdir) -> None:
    made = kdir.apply(SEARCH)
    assert made.code == 0, made.err
    assert actions(made) == [
        "create /la", "grant /la", "create /la/old", "create /la/search", "set /la/search",
        "create /la/search/clicks", "set /la/search",
    ]  # fmt: skip
    assert "done: 7 changes" in made.err
    # What would hinder the rest is set behind it: closed after grants, read-only after all.
    assert "closed=true" in made.lines[4]
    assert "read_only=true" in made.lines[6]
    again = kdir.apply(SEARCH)
    assert (again.code, again.out, again.err) == (0, "", "nothing to do\n")
    assert kdir.calls == []


def test_an_entry_is_closed_and_made_read_only_in_one_change(kdir: Kdir) -> None:
    """Else a caller whom the first of two shuts out could not make the second."""
    kdir.add("/la")
    made = kdir.apply(
        "{path: /la, kind: directory, policies: {closed: yes, read_only: yes, owner: a}}"
    )
    assert (made.code, actions(made)) == (0, ["set /la", "set /la"])
    assert "owner=a" in made.lines[0]
    assert "read_only=true, closed=true" in made.lines[1]


def test_what_is_exported_makes_the_same_tree_elsewhere(kdir: Kdir, tmp_path: Path) -> None:
    kdir.apply(SEARCH)
    text = kdir("export", "/la").out
    assert "retention.ms: 604800000\n" in text
    assert "  tags.tier: '1.10'\n" in text
    assert "  retention.ms: null\n" in text
    (tmp_path / "other").mkdir()
    other = Kdir(tmp_path / "other")
    with other.tree:
        assert other.apply(text).code == 0
        assert other("export", "/la").out == text
    assert kdir.apply(text).err == "nothing to do\n"


_KEYS = st.sampled_from(["owner", "retention.ms", "tags.a", "tags.null", "producer.acks", "closed"])
_VALUES = st.sampled_from(
    ["1", "true", "null", "~", "1.10", "", "é: #", "0x1F", "2026-11-23", "a=b"]
)


@settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.lists(st.dictionaries(_KEYS, st.one_of(st.none(), _VALUES), max_size=4), min_size=2,
                max_size=2))  # fmt: skip
def test_any_values_are_made_of_what_is_exported(
    tmp_path_factory: pytest.TempPathFactory, policies: list[dict[str, str | None]]
) -> None:
    """One after the other: what the second lacks of the first is unset."""
    kdir = Kdir(tmp_path_factory.mktemp("any"))
    with kdir.tree:
        for every in policies:
            entry = kdir.add("/other")
            for key, value in every.items():
                if key == "closed":
                    entry.directory.closed = True
                elif key == "owner":
                    entry.policies.owner = value or ""
                else:
                    group, _, rest = key.partition(".")
                    named = {
                        "tags": entry.policies.tags,
                        "producer": entry.policies.producer_defaults,
                    }.get(group)
                    one = entry.policies.topic_config[key] if named is None else named[rest]
                    if value is None:
                        one.cleared = True
                    else:
                        one.value = value
            text = kdir("export", "/other").out
            applied = kdir.apply(text.replace("/other", "/made"))
            assert applied.code == 0, (text, applied.err)
            assert kdir("export", "/made").out == text.replace("/other", "/made")
            assert kdir.apply(text.replace("/other", "/made")).err == "nothing to do\n"


def test_what_a_document_does_not_hold_stays(kdir: Kdir) -> None:
    kdir.apply(SEARCH)
    assert kdir.apply("{path: /la, kind: directory}").err == "nothing to do\n"
    less = kdir.apply("{path: /la, kind: directory, policies: {owner: x}, grants: []}")
    assert [row.split("\t")[0] for row in less.lines] == ["set", "revoke"]
    assert less.lines[0].endswith("owner=x, unset retention.ms, unset tags.tier")
    assert kdir.grants["/la/"] == {}


def test_what_is_armed_stays_and_is_named(kdir: Kdir) -> None:
    kdir.add("/la").policies.manage["acls"] = True
    text = kdir("export", "/la").out
    assert text.startswith("# /la is armed for acls: kdir apply leaves that\npath: /la\n")
    assert kdir.apply(text).err == "nothing to do\n"
    assert kdir.apply("{path: /la, kind: directory, policies: {manage.acls: false}}").code == 0
    arming = kdir.apply("{path: /la, kind: directory, policies: {manage.acls: true}}")
    assert arming.code == 2
    assert "policies.manage.acls: found 'true'; expected false: kdir arm" in arming.err


def test_nothing_is_removed_unless_asked_for(kdir: Kdir) -> None:
    kdir.apply(SEARCH)
    for path in ("/la/search/x/y/z", "/la/lone", "/other/t"):
        kdir.add_topic(path)
    assert kdir.apply(SEARCH).err == "nothing to do\n"
    before = kdir.paths
    blind = SEARCH.replace("read_only: yes, ", "")
    asked = kdir.apply(blind, "--prune", "/la", "--plan")
    assert "would remove directory /la/search/x" in asked.err
    assert (kdir.apply(blind, "--prune", "/la").code, kdir.paths) == (2, before)
    kdir.apply("{path: /la/search, kind: directory, policies: {}}")  # no longer read-only
    open_tree = SEARCH.replace("read_only: yes, ", "")
    refused = kdir.apply(open_tree, "--prune", "/la")
    assert refused.code == 2
    assert "needs --yes" in refused.err
    planned = kdir.apply(open_tree, "--prune", "/la", "--plan")
    assert "would remove topic /la/lone" in planned.err
    before = kdir.paths
    assert actions(planned)[-2:] == ["remove /la/lone", "remove /la/search/x"]
    assert kdir.paths == before
    done = kdir.apply(open_tree, "--prune", "/la", "--yes")
    assert done.code == 0, done.err
    assert kdir.paths == ["/la", "/la/old", "/la/search", "/la/search/clicks", "/other",
                          "/other/t"]  # fmt: skip
    elsewhere = kdir.apply(open_tree, "--prune", "/other", "--yes")
    assert (elsewhere.code, "no document is of this directory" in elsewhere.err) == (2, True)


@pytest.mark.parametrize("policies", ["{}", "{retention.ms: null}"])
def test_the_own_size_of_a_topic_stays_where_the_document_has_it(kdir: Kdir, policies: str) -> None:
    """Where a directory sets another size, a topic has its own from the start."""
    kdir.add_topic("/la/t", 24)
    topic = kdir.entries[KdirPath.parse("/la/t"), True]
    topic.policies.partitions = 24
    if policies != "{}":
        topic.policies.topic_config["retention.ms"].cleared = True
    text = f"{{path: /la/t, kind: topic, partitions: %s, policies: {policies}}}"
    assert kdir.apply(text % 24).err == "nothing to do\n"
    assert "unset partitions" in kdir.apply(text.replace("partitions: %s, ", "")).out


def test_a_plan_changes_nothing_and_names_what_cannot_be_undone(kdir: Kdir) -> None:
    kdir.apply(SEARCH)
    call = kdir.plan.kafka_calls.add(resource="search.clicks", key="retention.ms")
    call.deletes_data = True
    shorter = SEARCH.replace("7d", "1h")
    planned = kdir.apply(shorter, "--plan")
    assert (planned.code, kdir.calls) == (0, [])
    assert actions(planned) == ["set /la"]
    assert "would change retention.ms of 1 topic (by /la). Kafka may delete data" in planned.err
    assert "set /la: 1 call to Kafka" in planned.err
    (record,) = kdir.apply(shorter, "--plan", "-o", "json").objects
    assert record["plan"]["kafka_calls"][0]["deletes_data"] is True
    refused = kdir.apply(shorter)
    assert (refused.code, kdir.calls) == (2, [])
    assert "nothing was changed. Kafka may delete data" in refused.err
    no = kdir.apply(shorter, terminal=True, stdin="n\n")
    assert (no.code, kdir.calls) == (0, [])
    assert "unchanged: /la" in no.err
    assert kdir.apply(shorter, "--yes").code == 0


def test_an_error_half_way_says_what_is_left(kdir: Kdir) -> None:
    kdir.failing["/la/search"] = errors.PermissionDenied("no CREATE on /la")
    failed = kdir.apply(SEARCH)
    assert failed.code == 4
    assert actions(failed) == ["create /la", "grant /la", "create /la/old"]
    assert "not done: create directory /la/search\n" in failed.err
    assert "not done: create topic /la/search/clicks\n" in failed.err
    assert "done: 3 of 7 changes; the same command does the rest" in failed.err
    del kdir.failing["/la/search"]
    assert len(kdir.apply(SEARCH).lines) == 4


def test_what_the_tree_has_otherwise_is_not_changed(kdir: Kdir) -> None:
    kdir.tree.cluster("/ny", "ny")
    kdir.add_topic("/la/t", partitions=3)
    kdir.tree.link("/la/l", "/la")
    for document, code, text in (
        ("{path: /la/l, kind: directory}", 5, "a link in the tree, and a directory here"),
        ("{path: /la/l/x, kind: directory}", 5, "/la/l is no directory, and in no document"),
        ("{path: /la/x/y, kind: topic}", 5, "/la/x is no directory, and in no document"),
        ("{path: /la/t, kind: topic, physical_name: u}", 5, "la.t in the tree, u here"),
        ("{path: /la/m, kind: mount}", 5, "no mount; to make it: kdir mount /la/m"),
        ("{path: /ny, kind: mount, cluster: other}", 5, "a mount of ny, not of other"),
        ("{path: /la/t, kind: topic, partitions: 12}", 5, "to grow it: kdir grow /la/t --to 12"),
        ("{path: /ny, kind: mount, cluster: ny}", 0, "nothing to do"),
        ("{path: /la/t, kind: topic, partitions: 3}", 0, "nothing to do"),
    ):
        found = kdir.apply(document)
        assert (found.code, text in found.err) == (code, True), (document, found)
        assert kdir.calls == []


def test_another_kind_at_the_mount_of_a_cluster_without_a_parent_is_a_difference(
    tmp_path: Path,
) -> None:
    file = tmp_path / "la.yaml"
    file.write_text("{path: /la, kind: directory, policies: {owner: x}}")
    with MemoryDirectory() as tree:
        endpoint = tree.cluster("/la", "la")
        found = run(["--at", endpoint, "apply", str(file)], tree.transport)
    assert found.code == 5
    assert "/la: a mount in the tree, and a directory here" in found.err


_REPEATING = "\n".join(
    [
        "path: /la",
        "kind: directory",
        "policies:",
        "  k0: &k0 [a, a, a, a, a, a, a, a, a, a]",
        *(f"  k{n}: &k{n} [{', '.join(10 * [f'*k{n - 1}'])}]" for n in range(1, 20)),
    ]
)
"""Some hundred bytes whose aliases of aliases stand for 10^20 values."""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "document: found []; expected a mapping with path and kind"),
        ("{kind: topic}", "path: found None; expected a text"),
        ("{path: /la/q, knd: directory}", "field: found 'knd'; expected one of path, kind, "),
        ("{path: /la/q, knd: directory}", "; did you mean kind?"),
        ("{path: /la/q, kind: [a]}", "kind: found ['a']; expected a text"),
        ("{path: la, kind: topic}", "path: found 'la'; expected a canonical path"),
        ("{path: /la, kind: folder}", "kind: found 'folder'; expected one of directory, topic"),
        ("{path: /la, kind: directory, polices: {}}", "did you mean policies?"),
        ("{path: /la, kind: directory, policies: }", "policies: found None; expected a mapping"),
        ("{path: /la, kind: directory, policies: {retention.ms: 7x}}",
         "found '7x'; expected a whole number with one of the units ms, s, m, h, d, w\n"),
        ("{path: /la, kind: directory, policies: {retention.ms: 0.5d}}",
         "found '0.5d'; expected a whole number and a unit such as 12h\n"),
        ("{path: /la, kind: directory, policies: {max_topics: -1}}",
         "max_topics: found '-1'; expected a whole number from 0\n"),
        ("{path: /la, kind: directory, policies: {ownr: x}}", "did you mean owner?"),
        ("{path: /la, kind: directory, policies: {owner: null}}", "policies.owner: found None"),
        ("{path: /la, kind: topic, policies: {closed: true}}", "a policy of a topic"),
        ("{path: /la, kind: topic, partitions: 0}", "partitions: found '0'; expected a whole"),
        ("{path: /la, kind: link, targets: []}", "targets: found []; expected a list of paths"),
        ("{path: /la, kind: link, targets: [/x], mode: both}", "one of first, union"),
        ("{path: /la, kind: directory, grants: [{principal: a, operations: [rad]}]}", "read"),
        ("{path: /la, kind: directory, grants: [{operations: [read]}]}", "principal: found None"),
        ("{path: /la, path: /ny, kind: directory}",
         "the key 'path' is there twice in line 4, column 1\n"),
        ("{path: /la", "is not YAML"),
        ("{path: /la, kind: !!timestamp x}", "is not YAML"),
        ("{path: /la, kind: topic, partitions: !!int ''}", "is not YAML"),
        ("{path: /la, kind: directory, policies: {closed: !!bool x}}", "is not YAML"),
        ("[" * 100_000, "line 4: nested more than 32 levels deep"),
        ("- " * 100_000, "line 4: nested more than 32 levels deep"),
        (_REPEATING, "line 12: the aliases of a document repeat more than 1000000 characters"),
        ("{path: /la, kind: directory, policies: &a [*a]}", "policies: found [[...]]; expected a"),
        ("{path: /la, kind: directory, policies: !!map [a]}", "is not YAML: expected a mapping"),
        ("{path: /la, kind: directory, policies: !!map a}", "is not YAML: expected a mapping"),
        ("{path: /la, kind: !!timestamp {!!value =: a}}", "is not YAML"),
        ("{path: /la, kind: directory, policies: !!set [a]}", "is not YAML: expected a mapping"),
        (f"{{path: /la, kind: directory, policies: [{'a, ' * 9999}]}}", "'a', 'a',…; expected a"),
        ("{path: /la, kind: directory}\n---\n{path: /la, kind: link, targets: [/x]}",
         "document 3: path: found '/la'; expected a path once"),
    ],
)  # fmt: skip
def test_a_document_that_is_none_is_refused_before_any_change(
    kdir: Kdir, text: str, error: str
) -> None:
    valid = "path: /first\nkind: directory\n---\n"
    first = kdir.apply(valid + text)
    assert (first.code, kdir.calls) == (2, [])
    assert str(kdir.file) in first.err
    assert error in first.err


def test_documents_from_stdin_and_grants_of_other_resources(kdir: Kdir) -> None:
    kdir.add("/la")
    text = "{path: /la, kind: directory, grants: [{principal: a, operations: all, cluster: true}]}"
    assert kdir("apply", "-", stdin=text).code == 0
    (grant,) = grants_of("a", ["all"], resource="cluster")
    assert kdir.grants["/la/"] == {grant_text(grant): grant}
    assert "cluster: true" in kdir("export", "/la").out
    assert kdir.apply("{path: /nope, kind: directory}\n---\n").code == 0
    assert kdir("apply", "/no/such/file").code == 2


def test_values_are_checked_by_servers_before_the_first_change(kdir: Kdir) -> None:
    """Also those of an entry whose directory does not exist yet."""
    wrong = kdir.apply(SEARCH.replace("retention.ms: null", "flush.mss: 3"))
    assert (wrong.code, kdir.calls, kdir.paths) == (2, [], [])
    named = "document 3: create topic /la/search/clicks; nothing was changed"
    assert named in wrong.err
    assert "did you mean flush.ms?" in wrong.err
    kdir.add("/la/orders")
    both = "{path: /la/orders, kind: directory, policies: {owner: x}}\n---\n"
    assert kdir.apply(f"{both}{{path: /la/orders, kind: topic}}").code == 0


def test_what_is_beyond_the_limits_of_a_path_does_not_stop_a_prune(kdir: Kdir) -> None:
    """Its cluster came to a longer mount since it was made."""
    kdir.add("/la/old")
    deep = KdirPath(("la", "old", *["d"] * 63))
    kdir.cluster.put(deep, entry_pb2.Entry(directory=entry_pb2.Directory()))
    text = "{path: /la, kind: directory}"
    planned = kdir.apply(text, "--prune", "/la", "--plan")
    assert actions(planned) == ["remove /la/old"], planned.err


def test_what_is_mounted_without_a_document_is_not_pruned(kdir: Kdir) -> None:
    kdir.tree.cluster("/la/child", "child")
    kdir.tree.topic("/la/child/t")
    kdir.add("/la")
    alone = kdir.apply("{path: /la, kind: directory}", "--prune", "/la", "--yes")
    assert alone.err == "nothing to do\n"
    both = "{path: /la, kind: directory}\n---\n{path: /la/child, kind: mount, cluster: child}"
    # The child takes no changes here; that it is asked is enough.
    named = "refused: --prune /la: remove topic /la/child/t"
    assert named in kdir.apply(both, "--prune", "/la", "--plan").err


def test_the_documents_of_the_page_are_some(tmp_path: Path) -> None:
    (text,) = (one for one in blocks("docs/how-to/keep-a-tree-in-git.md") if one.language == "yaml")
    file = tmp_path / "tree.yaml"
    file.write_text(text.body)
    kinds = {str(one.path): one.kind for one in read_documents([str(file)])}
    assert kinds == {
        "/la/search": "link",
        "/la/tracking/search": "directory",
        "/la/tracking/search/clicks": "topic",
    }


def test_hosts_are_compared_as_servers_store_them(kdir: Kdir) -> None:
    kdir.apply(SEARCH)
    assert {one.host for one in kdir.grants["/la/"].values()} == {"*", "10.0.0.1"}
    wrong = "{path: /la, kind: directory, grants: [{principal: a, operations: [read], host: la}]}"
    assert "grants: number 1: host: found 'la'; expected an IP" in kdir.apply(wrong).err


@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("kept", [True, False])
def test_what_is_recorded_of_a_topic_between_plan_and_write_is_no_conflict(
    kdir: Kdir, *, kept: bool, is_changed: bool
) -> None:
    """Changed by nobody, it is set, or removed; changed by somebody, it is a conflict."""
    kdir.add_topic("/la/one")
    entry = kdir.entries[KdirPath.parse("/la/one"), True]

    def meanwhile() -> None:
        entry.topic.observed_config["retention.ms"] = "1"
        if is_changed:
            entry.policies.contact = "else"

    kdir.failing = failing = _Once({"/la/one": errors.EtagMismatch("/la/one has changed")})
    failing.meanwhile = meanwhile
    text = "{path: /la, kind: directory, policies: {}}"
    if kept:
        text += "\n---\n{path: /la/one, kind: topic, partitions: 1, policies: {owner: x}}"
    ran = kdir.apply(text, "--prune", "/la", "--yes")
    assert ran.code == (5 if is_changed else 0), ran.err
    assert len(kdir.calls) == (0 if is_changed else 1)
    assert ("(ETAG_MISMATCH)" in ran.err) == is_changed
