"""The reconciler dies anywhere while it pushes ACLs, and the next one finishes; and at no moment
does Kafka allow somebody what is allowed neither before nor after (A4).
"""

from __future__ import annotations

from pathlib import Path as FilePath

from directory.access.grants import Operation, ResourceType
from directory.kafka.admin_contract import AclBinding, Resource
from directory.namespace.entry import Kind
from tests.support.acls import arm, disarm, grant, kafka_allows, on, revoke
from tests.support.crash_points import Crash, Mortal, Passages
from tests.support.reconciler import World, world
from tests.unit.kafka.test_acl_applier import CEILING, CLICKS, Kafka, move

FOREIGN = on(CLICKS, "allow eve read") | on("group g", "allow eve read")
METHODS = frozenset({"acls", "add_acls", "remove_acls", "create", "put_facts", "commit_command"})
SETTINGS = {"ceiling": CEILING, "split_on": "."}
AFTER = (
    on(CLICKS, "deny alice read", "allow bob read", "allow carol write")
    | on("topic search.new", "deny alice read", "allow bob read")
    | on("group g-*", "allow bob read")
    | FOREIGN
)


class Watched(Kafka):
    """Kafka that checks after each change that no principal may do what it may neither before nor
    after.
    """

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.before: set[AclBinding] = set()

    def check(self) -> None:
        for name in ("search.clicks", "search.views", "search.new"):
            resource = Resource(ResourceType.TOPIC, name)
            for who in ("alice", "bob", "carol", "eve", "other"):
                for operation in (Operation.READ, Operation.WRITE, Operation.DESCRIBE):
                    now, then, soon = (
                        kafka_allows(
                            bindings,
                            f"User:{who}",
                            "10.0.0.1",
                            operation,
                            resource,
                            open_to_all=self.open_to_all and name != "search.new",
                        )
                        for bindings in (self.bindings, self.before, AFTER)
                    )
                    assert then or soon or not now, (name, who, operation)


def prepare(file: FilePath, kafka: Watched) -> None:
    """Prepares an armed directory, and changes since that were not pushed yet."""
    kafka.bindings |= FOREIGN
    with world(file, lambda: kafka, **SETTINGS) as here:
        here.sweep()
        grant(here, "search", "allow alice read", "deny bob read", "allow alice read group g-*")
        arm(here, "search", takeover=True)
        kafka.before = set(kafka.bindings)
        grant(here, "search", "deny alice read", "allow bob read", "allow bob read group g-*")
        revoke(here, "search", "allow alice read", "deny bob read", "allow alice read group g-*")
        grant(here, "search/clicks", "allow carol write")
        here.mkdir("elsewhere")
        move(here, "search/views", "elsewhere/views", Kind.TOPIC)
        here.create("search/new")


def one_run(file: FilePath, kafka: Watched, last: int) -> Passages:
    prepare(file, kafka)
    passages = Passages(last)
    dying = World(
        file,
        lambda: Mortal(kafka, passages, METHODS),
        writer=lambda real: Mortal(real, passages, METHODS),
        **SETTINGS,
    )
    try:
        dying.settle()
    except Crash:
        pass
    finally:
        dying.close()
    kafka.check()
    with world(file, lambda: kafka, **SETTINGS) as here:
        here.settle()
        assert kafka.bindings == AFTER, passages.log[-1:]
        assert here.states()["search/new"] == "ACTIVE"
        disarm(here, "search")
        here.settle()
        assert kafka.bindings == FOREIGN, passages.log[-1:]
    return passages


def test_a_crash_at_any_passage_is_finished_by_the_next_reconciler(tmp_path: FilePath) -> None:
    def kafka() -> Watched:
        made = Watched("search.clicks", "search.views")
        made.open_to_all = True
        return made

    log = one_run(tmp_path / "whole.db", kafka(), -1).log
    assert {"before add_acls", "after remove_acls", "before put_facts", "after create"} <= set(log)
    for last in range(1, len(log) + 1):
        one_run(tmp_path / f"{last}.db", kafka(), last)
