"""Random commands to a running server: the rows that its change log gives back are its store's."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from kdir.v1 import access_pb2, access_pb2_grpc, admin_pb2, admin_pb2_grpc, entry_pb2

from deploy.local.kafka import KafkaBroker
from directory.change_log.settings import ChangeLogConfig
from directory.kafka.own_client_settings import ClientProperties
from directory.maintenance.log_backup import log_rows
from directory.maintenance.migrate import migrate, plan_migration
from directory.maintenance.restore import Backup, plan_restore, restore
from directory.store.addresses import open_store
from resolver.errors import KdirError
from tests.integration.change_log.test_bad_days import admin_of, confirm, state_of
from tests.support.backups import back_up, put_back
from tests.support.change_logs import held_rows, rebuilt_rows
from tests.support.federation import Federation, Server, eventually


class Cluster:
    """A cluster with Kafka, a parent and a change log, of which a test asks things at random."""

    def __init__(self, root: Server, la: Server, broker: KafkaBroker, folder: Path) -> None:
        self.root, self.la, self.broker = root, la, broker
        self._folder = folder
        self._chance = random.Random(14)
        self._stores = 0
        self._backup = b""
        self.done: dict[str, int] = {}
        """How often each kind of command was done."""

    @property
    def store(self) -> str:
        return str(self.la.settings["store"])

    def new_store(self) -> str:
        self._stores += 1
        return f"sqlite:///{self._folder / f'store-{self._stores}.sqlite'}"

    # -- commands --------------------------------------------------------------------------------

    def path(self) -> str:
        return "/".join(["/la", *self._chance.choices("abc", k=self._chance.randrange(1, 4))])

    def command(self) -> None:
        """Asks for one thing; whether it can be done depends on what is there."""
        kinds = (self.make, self.make, self.change, self.move, self.remove, self.grant)
        kind = self._chance.choice(kinds)
        with suppress(KdirError):
            kind()
            self.done[kind.__name__] = self.done.get(kind.__name__, 0) + 1

    def make(self) -> None:
        path = self.path()
        match self._chance.randrange(5):
            case 0 | 1:
                self.la.mkdir(path)
            case 2:
                topic = entry_pb2.Entry(topic=entry_pb2.Topic())
                self.la.entries("CreateEntry", path=path, entry=topic, make_parents=True)
            case 3:
                self.la.link(path, "/la")
            case _:
                self.la.mount_child(path, f"kc-{'abcdefghij'[self._chance.randrange(10)] * 10}")

    def change(self) -> None:
        changed, mask = entry_pb2.Entry(), ["policies.owner"]
        match self._chance.randrange(4):
            case 0:
                changed.policies.owner = f"owner-{self._chance.randrange(9)}"
            case 1:
                changed.policies.read_only = self._chance.random() < 0.2
                mask = ["policies.read_only"]
            case 2:
                changed.policies.max_topics = self._chance.randrange(1, 99)
                mask = ["policies.max_topics"]
            case _:
                pass  # the owner is taken away
        path = "/" if self._chance.random() < 0.1 else self.path()
        server = self.root if path == "/" else self.la
        server.entries("UpdateEntry", path=path, entry=changed, update_mask={"paths": mask})

    def move(self) -> None:
        self.la.entries("MoveEntry", path=self.path(), new_path=self.path())

    def remove(self) -> None:
        self.la.entries("DeleteEntry", path=self.path(), recursive=True)

    def grant(self) -> None:
        grant = access_pb2.Grant(
            principal=f"User:{self._chance.choice(('ana', 'bob'))}",
            host="*",
            operation=access_pb2.OPERATION_READ,
            permission=access_pb2.PERMISSION_ALLOW,
        )
        kind = self._chance.choice(("AddGrants", "RemoveGrants"))
        request = getattr(access_pb2, f"{kind}Request")(path=self.path(), grants=[grant])
        self.la.ask(access_pb2_grpc.AccessServiceStub, kind, request)

    # -- what operators do -----------------------------------------------------------------------

    def operate(self, method: str, **fields: object) -> None:
        request = getattr(admin_pb2, f"{method}Request")(**fields)
        self.la.ask(admin_pb2_grpc.AdminServiceStub, method, request)

    def adopt(self) -> None:
        name = f"found_{self._chance.randrange(1_000_000)}"
        admin = admin_of(self.broker.bootstrap)
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
        eventually(lambda: name in self.la.names("/la"))
        moved = f"/la/{name}-moved"
        self.la.entries("MoveEntry", path=f"/la/{name}", new_path=moved)
        self.operate("AdoptTopics", remap_adopted=True)

    def detach(self) -> None:
        self.operate("DetachParent", keep_inherited=True)
        for _ in range(3):
            self.command()
        self.operate("AttachParent")

    def move_store(self) -> None:
        self.check()
        self.la.stop()
        target = self.new_store()
        migrate(plan_migration(self.store, target, force=True))
        self.la.settings["store"] = target
        self.la.start()
        self.check()

    def keep_backup(self) -> None:
        opened = open_store(self.store, "la")
        self._backup = back_up(opened)
        opened.close()

    def restore(self) -> None:
        if not self._backup:
            self.keep_backup()
        self.la.stop()
        put_back(self._backup, self.store)
        self.la.start()
        self.check()
        self.keep_backup()

    def restore_from_log(self) -> None:
        self.check()
        self.la.stop()
        before = held_rows(self.store)
        config = ChangeLogConfig((self.broker.bootstrap,), ClientProperties(), is_shared=True)
        self.la.settings["store"] = self.new_store()
        with log_rows(config, "la", self.la.cluster_id) as (header, rows):
            plan = plan_restore(Backup(header, rows, "change log"), self.store, replace=True)
            assert not plan.refusals, plan.refusals
            restore(plan)
        # What was written as the server stopped is not in the log.
        changed = dict(before).items() ^ dict(held_rows(self.store)).items()
        assert {key[:2] for key, _ in changed} <= {b"k/", b"x/"}, changed
        self.la.start()
        self.check()

    def check(self) -> None:
        """Compares log and store, byte by byte, once nothing waits."""

        def is_there() -> bool:
            found = state_of(self.la)
            if found.state.waits_for_operator:
                confirm(self.la)
            rebuilt = rebuilt_rows(self.broker.bootstrap, self.la.cluster_id)
            differing = dict(rebuilt).items() ^ dict(held_rows(self.store)).items()
            assert not differing, differing
            assert len(rebuilt) > 10
            return found.waiting_commits == 0

        eventually(is_there)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_after_random_commands_the_rows_of_the_log_are_those_of_the_store(
    tmp_path: Path, kafka_brokers: Callable[..., KafkaBroker], request: pytest.FixtureRequest
) -> None:
    is_long = request.config.getoption("--soak")  # make soak-log
    with kafka_brokers() as broker, Federation(tmp_path) as federation:
        root = federation.start("/")
        la = federation.join(
            "/la",
            "/",
            kafka={
                "bootstrap": [broker.bootstrap],
                "ceiling": ["create", "delete"],
                "sweep_interval_seconds": 0.5,
            },
            change_log={"bootstrap": [broker.bootstrap]},
            store=f"sqlite:///{tmp_path / 'store.sqlite'}",
        )
        cluster = Cluster(root, la, broker, tmp_path)
        acts = [cluster.adopt, cluster.detach, cluster.restore_from_log]
        if is_long:
            acts = 4 * [*acts, cluster.move_store, cluster.restore]
        each = 100 if is_long else 20
        eventually(lambda: state_of(la).state.generation == 1)
        for act in acts:
            for _ in range(each):
                cluster.command()
            act()
        cluster.check()
        assert sum(cluster.done.values()) > len(acts) * each // 4, cluster.done
        assert len(cluster.done) == 5, cluster.done
