"""TopicLocation: the result of a lookup of a path, for programs."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resolver.errors import InvalidArgument, Lame
from resolver.listeners import Listener, check_listener
from resolver.printable import cut_shown
from resolver.resolution.values import Answer, LinkStep, Sender
from resolver.topic_names import why_invalid

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2, policies_pb2, resolve_pb2

__all__ = ["Listener", "TopicLocation", "location_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLocation:
    """Location of a path. If its entry is not a topic, ``topic`` and ``bootstrap_servers`` raise
    InvalidArgument; ``kind``, the cluster and ``listeners`` are set.
    """

    path: str
    """Canonical path, with all links followed."""
    cluster: str
    """The cluster's name, for people."""
    cluster_id: str
    physical_name: str
    """Topic's name in Kafka; empty for an entry of another kind."""
    topic_id: str
    """Kafka's topic id in Kafka's own text form (22 characters); empty while unknown."""
    listeners: tuple[Listener, ...]
    mount: str
    """Path at which the cluster is mounted."""
    token: str
    """Token of the positions at which the answer was read, for read-your-writes; opaque."""
    stale: bool
    """True if the owner, or its store, could not be reached: the answer may be old."""
    age_seconds: float
    """Seconds: the possible age of a stale answer; otherwise the lag of the replica when it
    answered.
    """
    kind: str
    """``topic``, ``directory``, ``link`` or ``mount``."""
    partitions: int
    """Number of partitions; 0 = not known, or the entry is not a topic."""
    replication_factor: int
    has_container: bool
    """True if a directory, link or mount of the same name exists, too."""
    unconfirmed_seconds: float | None
    """Seconds since the parent last confirmed the mount; None while it is confirmed, or without a
    parent.
    """
    stop_reason: str = ""
    """Reason why changes in the cluster's Kafka are stopped, so that its topics' records may be
    old; empty = they are not stopped.
    """
    links: tuple[LinkStep, ...] = ()
    """Links that were followed, outermost first."""
    resolution: resolve_pb2.Resolution = field(compare=False, repr=False)
    """Whole answer as a message of the contract. It is shared and must not be changed."""
    authority: resolve_pb2.Authority = field(compare=False, repr=False)
    """Authority of the answer. It is shared and must not be changed."""

    @property
    def topic(self) -> str:
        """The topic's name in Kafka.

        Raises:
            InvalidArgument: the path is no topic.
        """
        self.check_topic()
        return self.physical_name

    @property
    def bootstrap_servers(self) -> str:
        """Servers of the first listener, ``host:port,host:port``; empty if there is no listener.

        Raises:
            InvalidArgument: the path is not a topic.
        """
        self.check_topic()
        return ",".join(self.listeners[0].bootstrap_servers) if self.listeners else ""

    def check_topic(self) -> None:
        """Checks that the path is a topic.

        Raises:
            InvalidArgument: it is not; names the kind.
        """
        if self.kind != "topic":
            raise InvalidArgument(
                f"{self.path} is a {self.kind}, not a topic: only topics have brokers to connect to"
            )

    @property
    def entry(self) -> entry_pb2.Entry:
        """Entry with all fields of the answer."""
        return self.resolution.entry

    @property
    def effective(self) -> policies_pb2.Policies | None:
        """Effective policies; None if none are set."""
        has = self.resolution.HasField("effective")
        return self.resolution.effective if has else None

    @property
    def is_fallback(self) -> bool:
        """True if a link's later target answered, since an earlier one was unreachable or
        absent.
        """
        return any(step.fallback for step in self.links)

    def listener(self, name: str) -> Listener | None:
        """Returns the listener of this name; None = there is none."""
        return next((one for one in self.listeners if one.name == name), None)

    def choose_listener(self, name: str = "") -> Listener:
        """Returns the listener of this name; without a name, the first.

        Raises:
            InvalidArgument: the path is no topic, or its cluster has no such listener.
        """
        self.check_topic()
        if not self.listeners:
            raise InvalidArgument(
                f"cluster {self.cluster} advertises no listeners; set kafka.listeners on its "
                f"servers"
            )
        chosen = self.listener(name) if name else self.listeners[0]
        if chosen is None:
            known = ", ".join(one.name for one in self.listeners)
            message = f"cluster {self.cluster} has no listener {name!r}; it has {known}"
            raise InvalidArgument(message)
        return chosen


def location_of(answer: Answer, sender: Sender, links: tuple[LinkStep, ...] = ()) -> TopicLocation:
    """Returns an owner's answer as a location; the ``payload`` of both is a message of the
    contract.

    The listeners and the topic's name in Kafka are checked, since clients are configured with them.

    Raises:
        Lame: the owner sent an invalid listener, or an invalid topic name; names the field, the
            value found and the value expected.
    """
    # ``resolver/reply_decoding.py`` set both payloads.
    resolution: resolve_pb2.Resolution = answer.payload  # type: ignore[assignment]
    authority: resolve_pb2.Authority = sender.payload  # type: ignore[assignment]
    entry = resolution.entry
    kind = entry.WhichOneof("kind") or ""
    topic = entry.topic if kind == "topic" else None
    listeners = tuple(
        Listener(
            one.name,
            tuple(one.bootstrap_servers),
            one.security_protocol,
            one.sasl_mechanism,
        )
        for one in authority.cluster.listeners
    )
    for number, listener in enumerate(listeners):
        try:
            check_listener(listener)
        except InvalidArgument as error:
            where = f"listeners[{number}].{error.metadata['field']}"
            raise Lame(
                f"cluster {sender.cluster} has a wrong listener in its answer: "
                f"listeners[{number}].{error.message}",
                field=where,
                found=error.metadata["found"],
            ) from None
    if topic is not None and (rule := why_invalid(topic.physical_name)):
        found = cut_shown(topic.physical_name)
        raise Lame(
            f"cluster {sender.cluster} sent an invalid topic name: topic.physical_name: "
            f"found {found}; {rule}; expected 1 to 249 of a-z A-Z 0-9 . _ -",
            field="topic.physical_name",
            found=found,
        )
    unconfirmed = authority.HasField("unconfirmed_seconds")
    return TopicLocation(
        path=entry.path,
        cluster=sender.cluster,
        cluster_id=sender.cluster_id,
        physical_name=topic.physical_name if topic is not None else "",
        topic_id=_kafka_text(topic.topic_id) if topic is not None else "",
        listeners=listeners,
        mount=authority.cluster.mount,
        token=authority.token,
        stale=sender.stale,
        age_seconds=sender.age_seconds,
        kind=kind,
        partitions=topic.partitions if topic is not None else 0,
        replication_factor=topic.replication_factor if topic is not None else 0,
        has_container=resolution.has_container,
        unconfirmed_seconds=authority.unconfirmed_seconds if unconfirmed else None,
        stop_reason=authority.stop_reason,
        links=links,
        resolution=resolution,
        authority=authority,
    )


def _kafka_text(topic_id: bytes) -> str:
    # As org.apache.kafka.common.Uuid prints it: URL-safe base64 without padding.
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode("ascii")
