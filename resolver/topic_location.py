"""TopicLocation: where a path is, for programs; refuses to ask anyone."""

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
    """Location of a path. What is no topic has a ``kind``, a cluster and listeners; its ``topic``
    and ``bootstrap_servers`` are an InvalidArgument.
    """

    path: str
    """Canonical: behind the links."""
    cluster: str
    """The cluster's name, for people."""
    cluster_id: str
    physical_name: str
    """The topic's name in Kafka; empty for what is no topic."""
    topic_id: str
    """Kafka's topic id in Kafka's own text form (22 characters); empty while unknown."""
    listeners: tuple[Listener, ...]
    mount: str
    """The path at which the cluster's tree is attached."""
    token: str
    """What was read, for read-your-writes; opaque."""
    stale: bool
    """The owner could not be asked, or its store was away: the answer may be old."""
    age_seconds: float
    """How old it may be where it is stale; else how far the replica lagged when it answered."""
    kind: str
    """``topic``, ``directory``, ``link`` or ``mount``."""
    partitions: int
    """0 = not known, or no topic."""
    replication_factor: int
    has_container: bool
    """A directory, link or mount of the same name exists here too."""
    unconfirmed_seconds: float | None
    """The parent has not confirmed the cluster's mount for so long; None while it does."""
    stop_reason: str = ""
    """Why changes in the cluster's Kafka are stopped, so that what is recorded of its topics may be
    old; empty = they are not.
    """
    links: tuple[LinkStep, ...] = ()
    """The links it was reached by, outermost first."""
    resolution: resolve_pb2.Resolution = field(compare=False, repr=False)
    """The whole answer of the contract. Shared: do not change it."""
    authority: resolve_pb2.Authority = field(compare=False, repr=False)
    """Who answered, from what, how fresh. Shared: do not change it."""

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
        """Those of the first listener, as Kafka's clients take them: ``host:port,host:port``.

        Raises:
            InvalidArgument: the path is no topic.
        """
        self.check_topic()
        return ",".join(self.listeners[0].bootstrap_servers) if self.listeners else ""

    def check_topic(self) -> None:
        """Checks that the path is a topic's.

        Raises:
            InvalidArgument: it is something else; names what.
        """
        if self.kind != "topic":
            raise InvalidArgument(
                f"{self.path} is a {self.kind}, not a topic: only topics have brokers to connect to"
            )

    @property
    def entry(self) -> entry_pb2.Entry:
        """The entry, with all that is known of it."""
        return self.resolution.entry

    @property
    def effective(self) -> policies_pb2.Policies | None:
        """What holds for it: its own policies and what it inherits; None where nothing is set."""
        has = self.resolution.HasField("effective")
        return self.resolution.effective if has else None

    @property
    def is_fallback(self) -> bool:
        """A link's first target could not be asked, and a later one answered."""
        return any(step.fallback for step in self.links)

    def listener(self, name: str) -> Listener | None:
        """Returns the listener of this name."""
        return next((one for one in self.listeners if one.name == name), None)


def location_of(answer: Answer, sender: Sender, links: tuple[LinkStep, ...] = ()) -> TopicLocation:
    """Returns an owner's answer as a location; ``payload`` of both are the contract's messages.

    What clients are made of is checked here, so that no setting, no command line and no program
    gets more of it than it says: the listeners, and the topic's name in Kafka.

    Raises:
        Lame: the owner names a listener that is none, or a topic that Kafka cannot have; names the
            field, what was found and what would be right.
    """
    resolution: resolve_pb2.Resolution = answer.payload  # type: ignore[assignment] # reply_decoding.py's
    authority: resolve_pb2.Authority = sender.payload  # type: ignore[assignment] # reply_decoding.py's
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
                f"cluster {sender.cluster} cannot be reached as its answer says: "
                f"listeners[{number}].{error.message}",
                field=where,
                found=error.metadata["found"],
            ) from None
    if topic is not None and (rule := why_invalid(topic.physical_name)):
        found = cut_shown(topic.physical_name)
        raise Lame(
            f"cluster {sender.cluster} names a topic that Kafka cannot have: topic.physical_name: "
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
