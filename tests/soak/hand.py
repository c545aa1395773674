"""Hand: arms directories, makes topics by kdir and behind its back, and keeps the ledger."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaException
from kdir.v1 import admin_pb2, admin_pb2_grpc, directory_pb2, entry_pb2, policies_pb2

from resolver.errors import KdirError
from resolver.revision_token import Token
from tests.soak.doors import StubDoor
from tests.soak.journal import Journal
from tests.soak.ledger import DAY_MS, Ledger, Topic
from tests.soak.world import Cluster, World

__all__ = ["Hand"]

_SHORT: Final = str(DAY_MS)
_LONG: Final = str(30 * DAY_MS)
_NAMES: Final = ("a", "b", "c", "d", "e", "f")
_DIRECTORIES: Final = 3


class Hand(threading.Thread):
    """One thread a Kafka, that does by turns what users and what strangers do."""

    def __init__(self, world: World, cluster: Cluster, journal: Journal, seed: str) -> None:
        super().__init__(name=f"hand-{cluster.mount}", daemon=True)
        assert cluster.broker is not None
        self._world = world
        self._cluster = cluster
        self._journal = journal
        self._random = random.Random(f"{seed}-{self.name}")
        self._ending = threading.Event()
        self.ledger = Ledger(cluster.broker, journal, shortened=self._is_short)
        self._token = ""
        self._short: set[str] = set()
        """Directories for which a short retention was asked once."""
        self._contested: set[str] = set()
        """Names that kdir was asked for, and strangers made as well."""
        cluster.on_restore.append(self._after_restore)
        self._looker = threading.Thread(target=self._look_on, name=f"look-{cluster.mount}")

    def stop(self) -> None:
        """Ends after the step under way."""
        self._ending.set()

    def run(self) -> None:
        self._looker.start()
        steps: list[Callable[[], object]] = [
            self._foreign,
            self._create,
            self._set,
            self._arm,
            self._contest,
            self._replace,
        ]
        steps += [self._remove, self._remove_foreign, self._set_above, self._acknowledge]
        weights = [5, 5, 3, 3, 2, 2, 2, 1, 1, 1]
        try:
            while not self._ending.wait(self._random.uniform(0, 0.7)):
                with self._cluster.using():
                    step = self._random.choices(steps, weights)[0]
                    try:
                        step()
                    except (KdirError, KafkaException, TimeoutError) as error:
                        self._journal.operation(
                            step.__name__.strip("_"),
                            "hand",
                            _reason(error),
                            self.name,
                            message=str(error),
                        )
                    else:
                        self._journal.operation(step.__name__.strip("_"), "hand", "ok", self.name)
        except BaseException as error:
            self._journal.breach("checker", f"{self.name} failed: {error!r}", self.name)
            raise
        finally:
            self._ending.set()
            self._looker.join()

    def _look_on(self) -> None:
        while not self._ending.wait(0.5):
            self.look()

    def look(self) -> bool:
        """Returns one look at all of Kafka; False: it did not answer."""
        with self.ledger.lock:
            lies = self._cluster.lies
            made = [one.name for one in self.ledger.topics.values() if one.messages]
        try:
            if lies.lie:
                lies.bend_kafka(self.ledger.broker, made)
            self.ledger.look()
        except (KafkaException, TimeoutError):
            return False
        return True

    # -- kdir ------------------------------------------------------------------------------------

    def _call(self, method: str, request: Any, seconds: float = 20) -> Any:
        door = StubDoor(self._random.choice(self._cluster.servers), self._cluster)
        if "request_id" in request.DESCRIPTOR.fields_by_name:
            request.request_id = f"{self._random.getrandbits(96):024x}"
        if "token" in request.DESCRIPTOR.fields_by_name:
            request.token = self._token
        self._journal.write("hand asks", request.path, method=method, request=str(request))
        answer = door.call(method, request, seconds)
        if token := getattr(answer, "token", ""):
            self._token = str(Token.merge([Token.parse(self._token), Token.parse(token)]))
        return answer

    def _directory(self) -> tuple[str, str]:
        """A directory of the hand's: its path, and how names of its topics begin."""
        name = f"k{self._random.randrange(_DIRECTORIES)}"
        return f"{self._cluster.top}/{name}", name

    def _make_directory(self, path: str) -> None:
        entry = entry_pb2.Entry(directory=entry_pb2.Directory())
        request = directory_pb2.CreateEntryRequest(path=path, entry=entry, make_parents=True)
        self._call("DirectoryService.CreateEntry", request)

    def _create(self, *, wait: bool = True) -> str:
        """A topic by kdir, which is kdir's to shorten where that was asked for; its name."""
        path, prefix = self._directory()
        self._make_directory(path)
        name = self._random.choice(_NAMES)
        request = directory_pb2.CreateEntryRequest(
            path=f"{path}/{name}",
            entry=entry_pb2.Entry(topic=entry_pb2.Topic()),
            wait_until_active=wait and self._random.random() < 0.5,
        )
        self._call("DirectoryService.CreateEntry", request)
        topic = self.ledger.by_name(f"{prefix}.{name}")
        if topic is not None and not topic.by_hand and not topic.messages:
            self.ledger.fill(topic)
        return f"{prefix}.{name}"

    def _is_short(self, name: str) -> bool:
        """True if a short retention was asked for a topic that kdir made. Workers set it as they
        like in their own directories.
        """
        directory = f"{self._cluster.top}/{name.split('.', maxsplit=1)[0]}"
        return not name.startswith("k") or bool({directory, self._cluster.mount} & self._short)

    def _set(self) -> None:
        """Another retention, which all that is released follows."""
        path, _ = self._directory()
        self._make_directory(path)
        self._set_retention(path)

    def _set_above(self) -> None:
        """The same at the mount."""
        self._set_retention(self._cluster.mount)

    def _set_retention(self, path: str) -> None:
        value = self._random.choice([_SHORT, _LONG, _LONG, None])
        if value == _SHORT:
            with self.ledger.lock:
                self._short.add(path)
        request = directory_pb2.UpdateEntryRequest(path=path, kind="ENTRY_KIND_DIRECTORY")
        request.update_mask.paths.append("policies.topic_config.retention.ms")
        if value is not None:
            request.entry.policies.topic_config["retention.ms"].value = value
        self._call("DirectoryService.UpdateEntry", request)

    def _arm(self) -> None:
        """Reads a plan and makes it: what it names, and what stood there, is released."""
        path, _ = self._directory()
        self._make_directory(path)
        standing = self._active(path)
        plan = policies_pb2.PlanArmingRequest(path=path, aspect="configs")
        ids = dict(standing)
        planned = self._call("PolicyService.PlanArming", plan)
        named = {call.resource for call in planned.calls}
        with self.ledger.lock:
            for name in named | ids.keys():
                topic = self.ledger.by_name(name)
                if topic is not None:
                    topic.may_shorten = topic.may_shorten or f"armed by {planned.plan_hash}"
                    self._journal.write("released", name, id=topic.topic_id, path=path)
        arm = policies_pb2.ArmRequest(path=path, aspect="configs", plan_hash=planned.plan_hash)
        self._call("PolicyService.Arm", arm)

    def _active(self, path: str) -> dict[str, str]:
        """Returns the topics that kdir has as active there: id by name."""
        request = directory_pb2.ListEntriesRequest(path=path, recursive=True, page_size=5000)
        answer = self._call("DirectoryService.ListEntries", request)
        return {
            entry.topic.physical_name: entry.topic.topic_id.hex()
            for entry in answer.entries
            if entry.topic.provision == entry_pb2.PROVISION_ACTIVE
        }

    def _remove(self) -> None:
        """A topic by kdir: it goes where the entry is of that very topic."""
        path, _ = self._directory()
        name = self._random.choice(_NAMES)
        kind: Any = "ENTRY_KIND_TOPIC"
        get = directory_pb2.GetEntryRequest(path=f"{path}/{name}", kind=kind)
        entry = self._call("DirectoryService.GetEntry", get).entry
        with self.ledger.lock:
            topic = self.ledger.by_name(entry.topic.physical_name)
            if topic is not None and (not topic.by_hand or entry.topic.adopted):
                topic.may_go = "removed by kdir"
        request = directory_pb2.DeleteEntryRequest(path=f"{path}/{name}", kind=kind)
        self._call("DirectoryService.DeleteEntry", request)

    def _acknowledge(self) -> None:
        """Lets kdir go on where the vanish guard stopped it."""
        server = self._random.choice(self._cluster.servers)
        stopped = server.status().kafka.stop_reason
        if stopped:
            self._journal.write("acknowledged", self.name, stopped=stopped)
            request = admin_pb2.AcknowledgeRequest(stop_reason=stopped)
            server.ask(admin_pb2_grpc.AdminServiceStub, "Acknowledge", request, 10)

    def _after_restore(self, taken_at: float) -> None:
        """What kdir made since the backup is to it now as if strangers had made it."""
        with self.ledger.lock:
            for topic in self.ledger.topics.values():
                if topic.seen_at > taken_at - 5 and not topic.is_gone:
                    topic.by_hand = True
            self._token = ""

    # -- strangers -------------------------------------------------------------------------------

    def _foreign(self) -> None:
        """A topic that somebody makes, often where directories are armed."""
        _, prefix = self._directory()
        retention_ms = self._random.choice([7 * DAY_MS, 365 * DAY_MS])
        self.ledger.make(
            f"{prefix}.{self._random.choice(_NAMES)}{self._random.choice('xyz')}", retention_ms
        )

    def _contest(self) -> None:
        """Kdir is asked for a topic, and at the same time somebody makes it."""
        name = self._create(wait=False)
        if self.ledger.make(name, 365 * DAY_MS):
            self._contested.add(name)

    def _replace(self) -> None:
        """Somebody removes a topic and makes it anew, or only removes it."""
        topic = self._some()
        if topic is None:
            return
        self.ledger.remove(topic)
        self._ending.wait(self._random.choice([0, 0.3, 3]))
        if self._random.random() < 0.8:
            self.ledger.make(topic.name, 365 * DAY_MS)

    def _remove_foreign(self) -> None:
        topic = self._some()
        if topic is not None:
            self.ledger.remove(topic)

    def _some(self) -> Topic | None:
        with self.ledger.lock:
            there = [
                one
                for one in self.ledger.topics.values()
                if not one.is_gone and one.name.startswith("k") and one.messages
            ]
        return self._random.choice(there) if there else None

    # -- the last look ---------------------------------------------------------------------------

    def look_at_all(self) -> None:
        """Compares Kafka with the model, with every fault healed, for as long as wrong pushes would
        take.
        """
        deadline = time.monotonic() + 15
        seen = 0
        while time.monotonic() < deadline or (seen < 3 and time.monotonic() < deadline + 100):
            seen += self.look()
            with suppress(KdirError, TimeoutError):
                self._acknowledge()  # what a restore brought back may be gone from Kafka
            time.sleep(0.5)
        if seen < 3:
            self._journal.breach("kafka unanswered", "the broker did not answer", self.name)
            return
        request = directory_pb2.ListEntriesRequest(
            path=self._cluster.mount, recursive=True, page_size=10_000
        )
        self._token = ""  # it may be of a life of the store that was restored since
        for entry in self._call("DirectoryService.ListEntries", request).entries:
            topic = entry.topic
            if topic.provision == entry_pb2.PROVISION_ACTIVE and topic.physical_name[:1] == "w":
                self._journal.check("kafka has it")
                if not self.ledger.has(topic.topic_id):
                    text = f"{entry.path} is active, and Kafka has it no more: {topic}"
                    self._journal.breach("kafka deleted", text, topic.physical_name)


def _reason(error: Exception) -> str:
    if isinstance(error, KdirError):
        return error.reason
    if isinstance(error, TimeoutError):
        return "TIMEOUT"
    detail = error.args[0] if error.args else None
    name = getattr(detail, "name", None)
    return str(name()) if callable(name) else "KAFKA"
