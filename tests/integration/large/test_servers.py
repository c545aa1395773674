"""Real servers on one store: a removal outlives the one that began it, and its progress is seen."""

from __future__ import annotations

import json
from pathlib import Path as FilePath

import pytest

from deploy.local.directory import DirectoryProcess
from directory.store.sqlite.store import SqliteStore
from tests.support.command_line import Ran, run
from tests.support.large_trees import check_no_orphans, commit, forest
from tests.support.reconciler import eventually

COUNT = 30_000


def kdir(server: DirectoryProcess, *arguments: str) -> Ran:
    return run([*arguments, "--at", server.address])


@pytest.mark.timeout(180)
def test_P12_a_removal_outlives_the_server_that_began_it_and_its_progress_is_shown(
    tmp_path: FilePath,
) -> None:
    path = tmp_path / "store.sqlite"
    store = SqliteStore(path, "la")
    commit(store, forest(COUNT))
    settings = {"store": f"sqlite:///{path}"}
    with (
        DirectoryProcess(tmp_path / "one", "/la", settings) as one,
        DirectoryProcess(tmp_path / "other", "/la", settings) as other,
    ):
        eventually(lambda: kdir(one, "ls", "/la").lines == ["x/"])
        removed = kdir(one, "rm", "-r", "-y", "/la/x")
        assert removed.code == 0, removed.err
        # Whichever of the two is elected: one dies, the other goes on.
        one.kill()

        def absent() -> Ran | None:
            ran = kdir(other, "stat", "/la/x")
            return ran if ran.code == 1 else None

        gone = eventually(absent)  # it sees what the other wrote a moment later
        assert gone is not None
        assert "delete /la/x: " in gone.err
        assert " done" in gone.err
        (reported,) = [json.loads(line) for line in kdir(other, "stat", "/la/", "-o", "json").lines]
        (change,) = reported["progress"]
        assert (change["kind"], change["path"]) == ("delete", "/la/x")
        assert change.get("done", 0) + change["remaining"] == COUNT + COUNT // 100 + 1
        assert "delete /la/x: " in kdir(other, "doctor", "--local").err
        eventually(
            lambda: (
                "progress" not in json.loads(kdir(other, "stat", "/la/", "-o", "json").lines[0])
            ),
            120,
        )
        assert kdir(other, "ls", "/la").lines == []
    assert check_no_orphans(store)["detached"] == COUNT
    store.close()
