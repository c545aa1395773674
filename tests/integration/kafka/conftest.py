"""A broker of a file's own: a reconciler looks at every topic that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from deploy.local.kafka import KafkaBroker
from directory.kafka.admin_client import ConfluentAdmin
from tests.support.reconciler import drop, in_kafka


@pytest.fixture(scope="module")
def own_broker(kafka_brokers: Callable[..., KafkaBroker]) -> Iterator[KafkaBroker]:
    """Yields one for all tests of a file; nobody stops it. One that were kept for other files would
    cost more while it is idle than another does to start.
    """
    with kafka_brokers() as broker:
        yield broker


@pytest.fixture
def broker(own_broker: KafkaBroker) -> KafkaBroker:
    """Returns the broker, with no topic on it."""
    admin = ConfluentAdmin([own_broker.bootstrap])
    names = in_kafka(admin)
    if names:
        drop(admin, *names)
    admin.close()
    return own_broker


@pytest.fixture
def kafka(broker: KafkaBroker) -> ConfluentAdmin:
    """Returns the admin client of another tool."""
    return ConfluentAdmin([broker.bootstrap])
