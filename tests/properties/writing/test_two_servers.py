"""Two servers of one store whose replicas lag at random answer as one that sees everything would.

The model is ``tests.support.trees.Cluster``: the same rules, on one tree that is never behind, and
what each request id was answered first. Commands come one after the other, at either server.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from directory.access.grants import Grant, Operation, Permission, ResourceType
from directory.namespace.command import (
    AddGrants,
    Command,
    CreateDirectory,
    CreateTopic,
    DeleteEntry,
    MoveEntry,
    Plan,
    RemoveGrants,
    UpdateEntry,
)
from directory.namespace.entry import Directory, Topic
from directory.store.sqlite.store import SqliteStore
from resolver.errors import KdirError
from tests.support.trees import Cluster, path
from tests.unit.writing.bench import Bench, eventually
from tests.unit.writing.lagging import LaggingStore

PATHS = [path(text) for text in ("/la/a", "/la/a", "/la/b", "/la/a/x", "/la/a/x/z")]
GRANTS = [
    Grant(principal, "*", operation, Permission.ALLOW, ResourceType.TOPIC, "")
    for principal in ("User:ana", "User:bo")
    for operation in (Operation.READ, Operation.WRITE)
]
at = st.sampled_from(PATHS)
grants = st.lists(st.sampled_from(GRANTS), min_size=1, max_size=2, unique=True).map(tuple)
owners = st.sampled_from(("x", "y"))

COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(CreateDirectory, path=at, make_parents=st.booleans()),
    st.builds(CreateTopic, path=at),
    st.builds(DeleteEntry, path=at, recursive=st.booleans()),
    st.builds(MoveEntry, path=at, new_path=at),
    st.builds(
        UpdateEntry,
        path=at,
        changes=owners.map(lambda owner: {"policies.owner": owner}),
    ),
    st.builds(AddGrants, path=at, grants=grants),
    st.builds(RemoveGrants, path=at, grants=grants),
)


@dataclass(frozen=True)
class Step:
    """One command, at one of the servers. ``falls_behind``: the other sees nothing of it, and of
    what comes after, until it is asked itself.
    """

    command: Command
    server: int
    falls_behind: bool
    validate_only: bool
    again: int | None
    """Which of the requests before it is asked once more instead."""


STEPS = st.lists(
    st.builds(
        Step,
        COMMANDS,
        st.sampled_from((0, 1)),
        st.booleans(),
        st.sampled_from((False, False, False, True)),
        st.sampled_from((None, None, 0, 1, 2)),
    ),
    min_size=5,
    max_size=25,
)
Answer = tuple[object, ...]


def answer_of(plan: Plan) -> Answer:
    """Returns what two servers must agree on: ids and times are each server's own."""
    entry = plan.entry
    owner = entry.policies.owner if isinstance(entry, Directory | Topic) else None
    return (
        plan.path,
        None if entry is None else entry.kind,
        owner,
        plan.topic_count,
        plan.directory_count,
        plan.grants,
        plan.grants_changed,
    )


class Servers:
    """Two servers, and the model that they are held to."""

    def __init__(self, folder: Path, cleanup: ExitStack) -> None:
        self.lags: list[LaggingStore] = []
        self.benches: list[Bench] = []
        for _ in range(2):
            store = SqliteStore(folder / "store.db", "la")
            cleanup.callback(store.close)
            lag = LaggingStore(store)
            self.lags.append(lag)
            self.benches.append(cleanup.enter_context(Bench(lag)))
        self.model = Cluster("/la")
        self.answered: dict[str, Answer] = {}
        """By request id; refusals are not kept."""
        self.asked: list[tuple[str, Command]] = []

    def do(self, step: Step) -> None:
        if step.falls_behind:
            self.lags[1 - step.server].hold()
        request_id, command = f"r{len(self.asked)}", step.command
        if step.again is not None and step.again < len(self.asked):
            request_id, command = self.asked[-1 - step.again]
        elif not step.validate_only:
            self.asked.append((request_id, command))
        expected = self._expected(request_id, command, validate_only=step.validate_only)
        assert self._found(step, request_id, command) == expected, (step, command)

    def _expected(self, request_id: str, command: Command, *, validate_only: bool) -> Answer:
        if not validate_only and request_id in self.answered:
            return self.answered[request_id]
        try:
            plan = self.model.plan(command)
        except KdirError as error:
            return (type(error),)
        if not validate_only:
            assert self.model.commit(plan)
            self.answered[request_id] = answer_of(plan)
        return answer_of(plan)

    def _found(self, step: Step, request_id: str, command: Command) -> Answer:
        try:
            written = self.benches[step.server].writer.commit_command(
                command,
                request_id=request_id,
                timeout_seconds=30,
                validate_only=step.validate_only,
            )
        except KdirError as error:
            return (type(error),)
        return answer_of(written.plan)


@settings(max_examples=60)
@given(STEPS)
def test_each_answer_is_that_of_one_server_that_sees_everything(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as cleanup:
        servers = Servers(Path(folder), cleanup)
        for lag in servers.lags:
            cleanup.callback(lag.let_go)
        servers.do(Step(CreateDirectory(path=path("/la/a")), 0, False, False, None))
        for step in steps:
            servers.do(step)
        for bench, lag in zip(servers.benches, servers.lags, strict=True):
            lag.let_go()
            newest = bench.store.newest_revision()
            eventually(lambda bench=bench, at=newest: bench.replica.reported_revision >= at)  # type: ignore[misc]
            served = Cluster("/la")
            served.snapshot = bench.replica.snapshot
            # Below that, removed entries stand by their ids.
            assert served.show().split("(removed)")[0] == servers.model.show().split("(removed)")[0]
