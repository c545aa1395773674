"""``kdir features``: what is shown, what is asked for, and who is asked before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kdir.v1 import admin_pb2

from resolver.errors import LevelNotFinalized
from resolver.path import Path as KdirPath
from resolver.testing import MemoryDirectory
from resolver.transport import Method
from tests.support.command_line import Ran, answering, run

AT = "127.0.0.1:20000"
MEMBERS = (
    admin_pb2.Member(
        server="la-1",
        endpoints=["10.0.0.1:7420"],
        feature_level=2,
        version="0.2.0",
        host="a",
        pid=11,
        roles=["reconciler", "parent-link"],
    ),
    admin_pb2.Member(server="la-2", feature_level=1),
)


pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")


class Kdir:
    """``kdir features`` at a server of la."""

    def __init__(self, tree: MemoryDirectory) -> None:
        self.tree = tree
        self.answers: dict[str, Any] = {}
        self.calls: list[Any] = []
        tree.cluster("/la", "la")
        owner = tree.deepest(KdirPath.parse("/la"))
        assert owner is not None
        tree.transport.serve(AT, answering(self.answers, owner.answer, self.calls))

    def shows(self, finalized: int, *members: admin_pb2.Member) -> None:
        status = admin_pb2.GetStatusResponse(finalized_level=finalized, members=members)
        status.authority.cluster.cluster = "la"
        self.answers["AdminService.GetStatus"] = status

    def finalizes(self, finalized: int, supported: int) -> None:
        """Answers as a server that is at one level and can go to another."""
        self.shows(finalized)

        def answer(request: admin_pb2.FinalizeFeaturesRequest) -> Any:
            if request.validate_only:
                return admin_pb2.FinalizeFeaturesResponse(
                    finalized_level=finalized, supported_level=supported
                )
            return admin_pb2.FinalizeFeaturesResponse(
                finalized_level=request.level or supported, supported_level=supported, token="t"
            )

        self.answers["AdminService.FinalizeFeatures"] = answer

    @property
    def changes(self) -> list[int]:
        """The levels that were asked for in earnest."""
        return [one.level for one in self.calls if getattr(one, "validate_only", None) is False]

    def __call__(self, line: str = "", *, terminal: bool = False, stdin: str = "") -> Ran:
        arguments = ["--at", AT, "features", *line.split()]
        return run(arguments, self.tree.transport, terminal=terminal, stdin=stdin)


@pytest.fixture
def kdir() -> Iterator[Kdir]:
    with MemoryDirectory() as tree:
        yield Kdir(tree)


def test_servers_are_shown_with_levels_and_roles(kdir: Kdir) -> None:
    kdir.shows(1, *MEMBERS)
    ran = kdir()
    assert ran.code == 0
    assert [line.split("\t") for line in ran.lines] == [
        ["la-1", "2", "1", "0.2.0", "a", "11", "10.0.0.1:7420", "reconciler,parent-link"],
        ["la-2", "1", "1", "", "-", "-", "-", "-"],
    ]
    assert "la: level 1 is finalized; level 2 needs an upgrade of la-2" in ran.err
    shown = kdir("show -o json").objects
    assert [one["server"] for one in shown[0]["members"]] == ["la-1", "la-2"]
    assert (shown[0]["finalized_level"], shown[0]["supported_level"]) == (1, 1)


def test_a_stale_level_is_reported(kdir: Kdir) -> None:
    kdir.shows(2, MEMBERS[0])
    authority = kdir.answers["AdminService.GetStatus"].authority
    authority.stale, authority.age_seconds = True, 120.0
    for line in ("", "-o json"):
        assert kdir(line).err.startswith("la: stale: its store has been unavailable for 2m\n")


@pytest.mark.parametrize(
    ("finalized", "output"),
    [(1, "every server supports 2: kdir features finalize"), (2, "la: level 2 is finalized\n")],
)
def test_what_is_to_be_done_is_shown(kdir: Kdir, finalized: int, output: str) -> None:
    kdir.shows(finalized, MEMBERS[0])
    assert output in kdir().err


def test_a_plan_changes_nothing(kdir: Kdir) -> None:
    kdir.finalizes(1, 2)
    ran = kdir("finalize --plan")
    assert ran.code == 0
    assert "would finalize level 2 of la (current level: 1)" in ran.err
    assert kdir.changes == []


def test_a_script_is_not_asked_and_a_person_is(kdir: Kdir) -> None:
    kdir.finalizes(1, 2)
    assert "la: level 2 is finalized; older" in kdir("finalize -y").err
    assert kdir.changes == [0]
    refused = kdir("finalize", stdin="y\n")
    assert refused.code == 2
    assert "to finalize level 2 of la needs --yes" in refused.err
    assert "unchanged" in kdir("finalize", terminal=True, stdin="n\n").err
    assert kdir.changes == [0]
    kdir("finalize --level 2", terminal=True, stdin="y\n")
    kdir("finalize --level 2 --yes", terminal=True)
    assert kdir.changes == [0, 2, 2]


def test_what_is_finalized_already_is_not_asked_for(kdir: Kdir) -> None:
    kdir.finalizes(2, 2)
    ran = kdir("finalize -o json")
    assert "la: level 2 is already finalized" in ran.err
    assert ran.objects[0]["finalized_level"] == 2
    assert kdir.changes == []


def test_a_refusal_is_a_conflict(kdir: Kdir) -> None:
    kdir.answers["AdminService.FinalizeFeatures"] = LevelNotFinalized("server la-2 supports 1")
    ran = kdir("finalize -y")
    assert ran.code == 5
    assert "server la-2 supports 1" in ran.err


@pytest.mark.parametrize(
    "line", ["finalize --level two", "finalize --level 0", "finalize --level -1", "raise",
             f"finalize --level {'9' * 5000}",
             "/la finalize", "--level 2", "show --plan"],
)  # fmt: skip
def test_texts_that_mean_nothing_are_refused(kdir: Kdir, line: str) -> None:
    assert kdir(line).code == 2
    assert kdir.calls == []


def test_the_cluster_of_a_path_is_meant(kdir: Kdir) -> None:
    kdir.shows(2, MEMBERS[0])
    kdir.finalizes(2, 2)
    kdir("show /la")
    kdir("finalize /la")
    kdir("/la")  # to show is the default
    ids = [one.cluster for one in kdir.calls]
    assert all(one.startswith("kc-") for one in ids), ids
    assert len(ids) == 3


@pytest.mark.parametrize(("name", "mount"), [("root", "/"), ("ny", "/ny"), ("kc-ny", "/ny")])
def test_a_cluster_is_found_by_name_and_only_its_own_servers_are_called(
    kdir: Kdir, name: str, mount: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = kdir.tree.transport
    for where, cluster in (("/", "root"), ("/ny", "ny")):
        endpoint = kdir.tree.cluster(where, cluster)
        status = admin_pb2.GetStatusResponse(finalized_level=1)
        status.authority.cluster.cluster = cluster
        own = kdir.tree.at(where).answer
        transport.serve(endpoint, answering({"AdminService.GetStatus": status}, own, []))
    expected: dict[str, str] = {}
    call = transport.call

    def noting(endpoint: str, method: Method, *rest: Any, cluster_id: str = "") -> Any:
        expected[f"{endpoint}{method.name}"] = cluster_id
        return call(endpoint, method, *rest, cluster_id=cluster_id)

    monkeypatch.setattr(transport, "call", noting)
    found = kdir.tree.at(mount)
    assert kdir(f"--cluster {name}").err.startswith(f"{found.name}: level 1")
    # A token is sent only to a server whose certificate names the cluster that is expected.
    assert expected[f"{found.endpoint}/kdir.v1.AdminService/GetStatus"] == found.cluster_id


def test_a_cluster_that_is_not_known_is_absent_only_where_the_root_knows(kdir: Kdir) -> None:
    alone = kdir("--cluster lo")
    assert (alone.code, "the root cannot be asked" in alone.err) == (3, True)
    assert "did you mean la?" in alone.err
    kdir.tree.cluster("/", "root")
    absent = kdir("--cluster lo")
    assert (absent.code, "no cluster 'lo' is mounted; did you mean la?" in absent.err) == (1, True)
    kdir.tree.cluster("/ny", "ny")
    kdir.tree.stop("/ny")
    unlinked = kdir("--cluster lo")
    assert (unlinked.code, "it may be at or below /ny" in unlinked.err) == (3, True)
