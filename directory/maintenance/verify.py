"""Compares all that a cluster is made of: its store, a server's replica of it, and its Kafka.

Refuses to mend anything, and to call equal what could not be compared: the summary says what could
not be, and why.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from directory.maintenance.backup_rows import Row
from directory.maintenance.field_differences import Difference
from directory.maintenance.verify_store import StoreComparison
from directory.namespace.snapshot import Snapshot
from directory.store.base import Loading, Store
from directory.store.replica import AppliedCommit, Replica
from resolver.errors import KafkaRefused, KafkaUnavailable, KdirError
from resolver.path import Path

if TYPE_CHECKING:
    from directory.server.config import KafkaConfig

__all__ = ["Summary", "compare_kafka", "compare_rows"]

_log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 30.0
_HELD: Final = 10_000
_TRIES: Final = 3


@dataclass(slots=True)
class Summary:
    """What was compared, and what could not be; filled while differences are yielded."""

    revision: int = 0
    rows: int = 0
    kafka_topics: int | None = None
    troubles: list[str] = field(default_factory=list)


def compare_rows(
    store: Store, replica: Replica, mount: Path, check: Callable[[], None], summary: Summary
) -> Iterator[Difference]:
    """Stores and replica at one revision, and the store's rows with each other.

    Raises:
        StoreUnreachable: also in the middle; begin again.
        NotReady: nothing is loaded yet.
    """
    identity = store.refresh_identity()
    if identity.partial:
        summary.troubles.append("the store is being filled: what it holds is not whole yet")
        return
    for _ in range(_TRIES):
        with _Trees(replica) as trees:
            loading = store.load()
            if loading.revision < trees.begun:  # commits only rise: this was none
                summary.troubles.append(
                    f"something else than kdir wrote to the store: this server's replica was "
                    f"brought to revision {trees.begun}, and the last commit is "
                    f"{loading.revision}; after the next change through kdir they can be compared"
                )
                _drop(loading)
                return
            try:
                replica.wait_for(loading.revision, _WAIT_SECONDS)
            except KdirError as error:
                summary.troubles.append(
                    f"this server's replica does not come to revision {loading.revision}: "
                    f"{error.message}"
                )
                _drop(loading)
                return
            snapshot = trees.at(loading.revision)
        if snapshot is not None:
            break
        _drop(loading)  # loaded anew, or much was written, in this very moment
    else:
        summary.troubles.append("the store changed too fast to be met at one revision")
        return
    comparison = StoreComparison(snapshot, _rows(loading), mount, check)
    summary.revision = snapshot.revision
    yield from comparison.differences()
    summary.rows = comparison.row_count
    # Rows and tree may be of two incarnations then: no difference between them is no proof.
    found = {identity.incarnation, snapshot.incarnation, store.refresh_identity().incarnation}
    if len(found) > 1:
        summary.troubles.append(
            "the store was restored during the comparison, and a new incarnation of it began; "
            "begin again: kdir verify"
        )


def _rows(loading: Loading) -> Iterator[Row]:
    for page in loading.pages():
        yield from page


def _drop(loading: Loading) -> None:
    """Gives back what a load holds."""
    for _ in loading.pages():
        break


class _Trees:
    """The trees of the last revisions, kept as they are published: which of them will be wanted is
    known only when the store was asked. Each shares all but its change with the one before.
    """

    def __init__(self, replica: Replica) -> None:
        self._lock: Final = threading.Lock()
        self._trees: list[Snapshot] = []
        self._whole = True
        self._unsubscribe: Final = replica.subscribe(self._applied)
        self._first: Final = replica.snapshot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._unsubscribe()

    @property
    def begun(self) -> int:
        """The revision of the first of them."""
        return self._first.revision

    def at(self, revision: int) -> Snapshot | None:
        """Returns the tree as it was at a revision; None: it was not kept."""
        with self._lock:
            if not self._whole:
                return None
            trees = [one for one in (self._first, *self._trees) if one.revision <= revision]
        return max(trees, key=lambda one: one.revision, default=None)

    def _applied(self, applied: AppliedCommit) -> None:
        with self._lock:
            if applied.reloaded or len(self._trees) >= _HELD:
                self._whole = False
            else:
                self._trees.append(applied.after)


def compare_kafka(
    config: KafkaConfig,
    latest: Callable[[], Snapshot],
    mount: Path,
    check: Callable[[], None],
    summary: Summary,
) -> Iterator[Difference]:
    """Yields the tree with its Kafka. A Kafka that is away, or refuses, is a trouble."""
    from directory.kafka.admin_client import ConfluentAdmin
    from directory.kafka.assembly import settings_of
    from directory.maintenance.kafka_check import KafkaCheck

    settings = settings_of(config)
    kafka = KafkaCheck(latest, mount, settings.placing, check)
    admin = ConfluentAdmin(
        settings.bootstrap,
        properties=settings.properties,
        timeout_seconds=settings.timeout_seconds,
    )
    with closing(admin):
        try:
            yield from kafka.differences(admin)
        except (KafkaUnavailable, KafkaRefused) as error:
            kafka.topics = None
            kafka.troubles.append(error.message)
    summary.kafka_topics = kafka.topics
    summary.troubles += kafka.troubles[:_NAMED]
    if len(kafka.troubles) > _NAMED:
        summary.troubles.append(f"and {len(kafka.troubles) - _NAMED:,} more of Kafka")


_NAMED: Final = 5
