"""The topics that the demo's Kafka clusters had before kdir came."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Seed:
    """A topic as its owners made it, with Kafka's own tools."""

    name: str
    partitions: int = 1
    config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def _kept(days: int) -> dict[str, str]:
    return {"retention.ms": str(days * DAY_MS)}


SEEDS: Mapping[str, tuple[Seed, ...]] = MappingProxyType(
    {
        "la-tracking": (
            Seed("search.clicks", 6, _kept(7)),
            Seed("search.views", 6, _kept(7)),
            Seed("search.ranking.features", 3),
            Seed("ads.impressions", 6, _kept(2)),
            Seed("ads.clicks", 3, _kept(30)),
            # With orders.dlq: a topic and a directory of one name, as is usual in Kafka.
            Seed("orders", 3, _kept(30)),
            Seed("orders.dlq"),
        ),
        "la-metrics": (
            Seed("sys.cpu", 2, _kept(1)),
            Seed("sys.memory", 2, _kept(1)),
            Seed("app.latency", 4),
        ),
        "ny-tracking": (
            Seed("search.clicks", 4, _kept(7)),
            Seed("search.views", 4, _kept(7)),
            Seed("checkout.payments", 2, _kept(90)),
        ),
    }
)


def make(bootstrap: str, seeds: tuple[Seed, ...]) -> None:
    """Makes the topics by a plain Kafka client, and waits until the broker has them.

    Raises:
        confluent_kafka.KafkaException: the broker refused.
    """
    from confluent_kafka.admin import AdminClient, NewTopic

    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = [
        NewTopic(seed.name, seed.partitions, replication_factor=1, config=dict(seed.config))
        for seed in seeds
    ]
    for made in client.create_topics(wanted, operation_timeout=30).values():
        made.result(timeout=60)
