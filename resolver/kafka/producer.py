"""Kafka producer with paths: confluent-kafka's interface, with a path instead of a topic.

A producer has a client of confluent-kafka for each cluster and set of settings, created by the
first message. A path in the resolver's cache costs no call. If a link's first target is
unreachable, its later ones are used only if the link allows that for writes. Only the process that
created a producer may use it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import Producer as KafkaProducer

from resolver.errors import Closed, InvalidArgument, KafkaUnavailable, KdirError
from resolver.kafka.client_errors import client_error
from resolver.kafka.client_settings import for_librdkafka, producer_settings
from resolver.kafka.listener_choice import (
    connection,
    kafka_error_text,
    setting_layers,
    split_settings,
)
from resolver.kafka.messages import PathMessage
from resolver.kafka.timeouts import deadline_after
from resolver.path import Path

if TYPE_CHECKING:
    from resolver.client import Resolver
    from resolver.topic_location import TopicLocation

__all__ = ["Producer", "flush_deliveries"]

_log = logging.getLogger(__name__)

Delivered = Callable[[KafkaError | None, PathMessage], None]
"""Callback that ``poll`` or ``flush`` calls for each message, with the error (None = delivered) and
the message, whose ``topic()`` is the path."""

_TRANSACTION: Final = "transactional.id"
_SWITCH_SECONDS: Final = 30.0
"""Longest wait for messages that were sent with a path's former settings, before its new settings
are used.
"""
_LOOK_SECONDS: Final = 0.5
"""Longest time, after a commit, to look up the paths' settings: meanwhile another producer could
take the transactional id, and a client with new settings would fence that one.
"""
_LEAST_SECONDS: Final = 5.0
"""With less time left after a commit, no client is replaced: Kafka may still execute a request
after the new client's timeout, which would fence the former client. With TLS and SASL, some 15
round trips lead to that request, and it waits until Kafka has written the end of the transaction
everywhere.
"""
_REPORT_SECONDS: Final = 1.0
"""Longest wait for the delivery reports of a client after a fatal error."""

_ABORT_SECONDS: Final = 1.0
"""Least time for the abort of an open transaction, when the producer is closed."""

_POLL_SECONDS: Final = 0.05
"""Time for which ``poll`` waits for one client, if there are several clients, none, or no time
limit.
"""
_FLUSH_SECONDS: Final = 0.1
"""Longest time of one call of ``flush``. confluent-kafka splits a longer call into rounds and
continues after a fatal error, by which delivery reports would be lost.
"""

_Key = tuple[str, tuple[tuple[str, str], ...]]
"""Cluster id and settings of a client."""


class Producer:
    """Kafka producer that produces to paths.

    Args:
        resolver: resolves the paths; ``close`` leaves it open.
        settings: Kafka's (or librdkafka's) producer settings, without ``bootstrap.servers``. They
            override the policies of a path, which override ``acks=all``,
            ``enable.idempotence=true`` (KIP-679) and ``allow.auto.create.topics=false``.
            Callbacks (``oauth_cb``, …) and ``logger`` are those of confluent-kafka: each client
            calls them.
        listener: name of the listener by which to connect to a cluster; empty = its first.

    Deliveries are reported by ``poll``, ``flush`` and ``close``, and by a ``produce`` that waits
    for messages sent with a path's former settings.
    """

    def __init__(
        self, resolver: Resolver, settings: Mapping[str, Any] | None = None, *, listener: str = ""
    ) -> None:
        self._resolver = resolver
        self._settings, self._callbacks = split_settings(settings or {})
        producer_settings(setting_layers(self._settings, None))  # raises at once for wrong settings
        self._listener = listener
        self._process = os.getpid()
        self._clients: dict[_Key, KafkaProducer] = {}
        self._last: dict[str, _Key] = {}
        """Key of the client of the last message, by path."""
        self._transactional = _TRANSACTION in self._settings
        self._open_transaction = False
        self._in_transaction: KafkaProducer | None = None
        self._has_sent = False
        """True if the open transaction has a message."""
        self._has_former = False
        """True if a path of the open transaction has other settings now than its client."""
        self._refused: _Key | None = None
        """Key of a replacement client that Kafka refused; not tried again until the settings
        change.
        """
        self._is_closed = False

    # -- messages ------------------------------------------------------------------------------

    def produce(
        self,
        path: Path | str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: Delivered | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Hands a message to the client of the path's cluster, which sends it in the background.

        Args:
            timestamp: Unix milliseconds; 0 = now.

        Raises:
            KdirError: the path cannot be resolved.
            InvalidArgument: the path is no topic; its settings conflict; no transaction is open.
            KafkaUnavailable: messages sent with the path's former settings did not arrive in 30 s.
            BufferError: the queue is full: call ``poll``, then try again.
            KafkaException: any other error of confluent-kafka.
            Closed: this producer was closed.
        """
        self._refuse_closed()
        found = self._resolver.resolve(path, for_writes=True)
        client_key, client = self._client(found)
        self._refuse_closed()  # another thread may have closed it meanwhile
        more: dict[str, Any] = {"timestamp": timestamp} if timestamp else {}
        if headers is not None:
            more["headers"] = headers
        if on_delivery is not None:
            more["on_delivery"] = _with_path(found, on_delivery)
        client.produce(found.topic, value=value, key=key, partition=partition, **more)
        self._has_sent = True
        # Another thread may drop the client meanwhile, by which its messages would be lost.
        is_dropped = self._clients.get(client_key) is not client
        if is_dropped and flush_deliveries(client, _SWITCH_SECONDS):
            self._clients.setdefault(client_key, client)

    def poll(self, timeout: float = 0.0) -> int:
        """Calls the callbacks of deliveries; waits up to ``timeout`` seconds for the first one
        (negative: until ``close``). Returns the number of handled events.

        Raises:
            PermissionDenied, KafkaRejected: a client had a fatal error; its messages were reported
                as failed. Unless the producer is transactional, the next message gets a new client.
        """
        self._same_process()
        reported = self._poll(0.0)
        deadline = deadline_after(timeout)
        while not reported and (left := deadline - time.monotonic()) > 0:
            if not self._clients:
                if self._is_closed and left == math.inf:
                    break
                time.sleep(min(left, _POLL_SECONDS))  # another thread may produce the first message
                continue
            is_whole = len(self._clients) == 1 and left < math.inf
            reported = self._poll(left if is_whole else min(left, _POLL_SECONDS))
        return reported

    def flush(self, timeout: float = 30.0) -> int:
        """Waits up to ``timeout`` seconds for all deliveries (negative: without a limit). Returns
        the number of messages whose delivery is still unknown.

        Raises:
            PermissionDenied, KafkaRejected: as ``poll``, after the wait for the other clients.
        """
        self._same_process()
        deadline = deadline_after(timeout)
        ended: list[KdirError] = []
        count = 0
        for key, client in list(self._clients.items()):
            try:
                count += flush_deliveries(client, max(0.0, deadline - time.monotonic()))
            except KafkaException as error:
                ended.append(self._ended(key, client, error))
        if ended:
            raise ended[0]  # after the wait for the other clients
        return count

    def explained(self, error: KafkaError, path: Path | str) -> KdirError:
        """Returns kdir's error for the error of a delivery; for a denial its message has the
        missing right and the command that explains it.
        """
        settings = dict(self._last.get(str(path), ("", ()))[1]) or self._settings
        return client_error(error, str(path), settings, for_writes=True)

    def purge(self) -> None:
        """Drops all messages that are queued or in flight. The next ``poll`` reports each as
        failed, although a message in flight may have been delivered.
        """
        for client in self._clients.values():
            client.purge()

    def __len__(self) -> int:
        """Returns the number of messages that are not delivered yet."""
        return sum(len(client) for client in self._clients.values())

    def close(self, timeout: float = 30.0) -> int:
        """Flushes as ``flush``, closes the connections, and returns how many messages were not
        delivered. ``produce`` raises ``Closed`` from then on. An open transaction is aborted, which
        may take a second more.
        """
        self._same_process()
        self._is_closed = True
        deadline = deadline_after(timeout)
        try:
            return self.flush(timeout)
        finally:
            if self._in_transaction is not None:
                left = (
                    -1 if deadline == math.inf else max(_ABORT_SECONDS, deadline - time.monotonic())
                )
                # Until Kafka's own timeout, an open transaction would hold up its readers.
                with suppress(KafkaException):
                    self._in_transaction.abort_transaction(left)
            self._open_transaction, self._in_transaction = False, None
            self._clients.clear()
            self._last.clear()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise Closed("this producer was closed: make another one")

    # -- transactions --------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Begins a transaction, in the cluster of the first path that is produced to: Kafka has
        no transactions across clusters.

        Raises:
            InvalidArgument: ``transactional.id`` is not set, or a transaction is open.
            Closed: this producer was closed.
        """
        self._refuse_closed()
        if not self._transactional:
            raise InvalidArgument(f"{_TRANSACTION} is not set: there are no transactions")
        if self._open_transaction:
            raise InvalidArgument("a transaction is open: commit or abort it first")
        self._has_sent = self._has_former = False
        self._open_transaction = True

    def send_offsets_to_transaction(
        self, positions: Any, group_metadata: Any, timeout: float = 30.0
    ) -> None:
        """Commits a consumer's offsets with the transaction. ``positions`` have Kafka's topic
        names, not paths, and must be in the transaction's cluster.
        """
        if self._in_transaction is None:
            raise InvalidArgument("nothing was produced yet, so the transaction has no cluster")
        self._in_transaction.send_offsets_to_transaction(positions, group_metadata, timeout)

    def commit_transaction(self, timeout: float = 30.0) -> None:
        """Commits the transaction; the error in a KafkaException shows whether to retry or to
        abort.

        If policies changed meanwhile, a client with the new settings then replaces the cluster's
        client, within the same timeout in seconds; with less than 5 s left, a later commit does it.
        Negative = no limit, as for Kafka's client.
        """
        deadline = deadline_after(timeout)
        former = self._in_transaction
        self._end(lambda client: client.commit_transaction(timeout))
        if former is None or not self._has_sent:
            return
        if not self._has_former:
            self._refused = None
            return
        changed = self._changed_settings(former, deadline - time.monotonic())
        seconds_left = deadline - time.monotonic()
        if changed is not None and seconds_left >= _LEAST_SECONDS:
            self._replace(former, *changed, min(seconds_left, _SWITCH_SECONDS))

    def abort_transaction(self, timeout: float = 30.0) -> None:
        """Aborts the transaction: none of its messages becomes visible."""
        self._end(lambda client: client.abort_transaction(timeout))

    def _end(self, how: Callable[[KafkaProducer], object]) -> None:
        if not self._open_transaction:
            raise InvalidArgument("no transaction is open: begin_transaction comes first")
        if self._in_transaction is not None:
            how(self._in_transaction)
        self._open_transaction, self._in_transaction = False, None

    # -- clients -------------------------------------------------------------------------------

    def _client(self, found: TopicLocation) -> tuple[_Key, KafkaProducer]:
        """Returns the client for the current cluster and settings of a path, and its key."""
        self._same_process()
        key, mixed = self._keyed_settings(found)
        if self._transactional:
            key = self._key_in_cluster(found, key)
        client = self._clients.get(key)
        if client is None:
            client = self._open(found, key, mixed)
        before = self._last.get(found.path)
        if before is not None and before != key:
            self._switch(found, before)
        self._last[found.path] = key
        if before is not None and before != key:
            self._drop_unused(before)
        if self._transactional:
            self._join(found, client)
        return key, client

    def _keyed_settings(self, found: TopicLocation) -> tuple[_Key, Mapping[str, str]]:
        """Returns the current settings of a client for a path, and their key."""
        where = connection(found, self._listener)
        settings = producer_settings(setting_layers(self._settings, found))
        mixed = {**where, **for_librdkafka(settings)}
        named = dict(mixed)
        if self._transactional:
            # A transactional id has one client in a cluster, which finds other brokers by itself.
            del named["bootstrap.servers"]
        return (found.cluster_id, tuple(sorted(named.items()))), mixed

    def _key_in_cluster(self, found: TopicLocation, key: _Key) -> _Key:
        """Returns the key of the only client that a transactional id has in the path's cluster: two
        would fence each other. A path that used this client before keeps it even if its settings
        differ now.
        """
        former_key = next((one for one in list(self._clients) if one[0] == key[0]), key)
        if former_key == key:
            return key
        if self._last.get(found.path, ("",))[0] == key[0]:
            self._has_former = True
            return former_key
        differ = sorted({name for name, _ in set(former_key[1]) ^ set(key[1])})
        raise InvalidArgument(
            f"{found.path}: its policies set another {', '.join(differ)} than this producer uses "
            f"in cluster {found.cluster}, where a transactional producer has one value: set it in "
            f"the settings"
        )

    def _changed_settings(
        self, former: KafkaProducer, seconds_left: float
    ) -> tuple[TopicLocation, _Key, Mapping[str, str]] | None:
        """Returns the settings that all paths of a client's cluster have now, with their key and
        the location of one path; None if the paths' settings differ, or the client has them
        already. A path that cannot be resolved in time is ignored: nothing can be produced to it
        now.
        """
        if seconds_left <= 0:
            return None
        keys = [key for key, client in list(self._clients.items()) if client is former]
        cluster_id = keys[0][0] if keys else ""
        paths = [path for path, key in list(self._last.items()) if key[0] == cluster_id]
        seconds = min(seconds_left, _LOOK_SECONDS)
        try:
            answers = self._resolver.resolve_many(paths, for_writes=True, timeout_seconds=seconds)
        except KdirError:
            return None  # the transaction is committed
        shown: dict[_Key, tuple[TopicLocation, _Key, Mapping[str, str]]] = {}
        for found in answers:
            if isinstance(found, KdirError):
                continue
            with suppress(KdirError):
                key, settings = self._keyed_settings(found)
                if key[0] == cluster_id:
                    shown[key] = found, key, settings
        changed = shown.popitem()[1] if len(shown) == 1 else None
        if changed is None or changed[1] in self._clients or changed[1] == self._refused:
            return None
        return changed

    def _replace(
        self,
        former: KafkaProducer,
        found: TopicLocation,
        key: _Key,
        settings: Mapping[str, str],
        seconds: float,
    ) -> None:
        """Replaces a client right after the commit of its transaction. At another time another
        producer could have its transactional id, and the new client would fence that one.
        """
        try:
            self._open(found, key, settings, seconds)
        except KafkaUnavailable:
            return  # the transaction is committed; the former client is used for the next one, too
        except KdirError as error:
            self._refused = key
            _log.warning(
                "%s: the transactional producer keeps its former settings until its policies "
                "change again: %s",
                found.path,
                error.message,
            )
            return
        former_key = next(one for one, client in self._clients.items() if client is former)
        self._last = {path: key if one == former_key else one for path, one in self._last.items()}
        del self._clients[former_key]
        with suppress(KafkaException):
            flush_deliveries(former, _REPORT_SECONDS)

    def _open(
        self,
        found: TopicLocation,
        key: _Key,
        settings: Mapping[str, str],
        seconds: float = _SWITCH_SECONDS,
    ) -> KafkaProducer:
        try:
            client = KafkaProducer({**settings, **self._callbacks})
        except KafkaException as error:
            raise InvalidArgument(
                f"{found.path}: Kafka's client reports: {kafka_error_text(error)}"
            ) from error
        if self._transactional:
            try:
                client.init_transactions(seconds)
            except KafkaException as error:
                raise client_error(error.args[0], found.path, settings, for_writes=True) from error
        self._clients[key] = client
        return client

    def _switch(self, found: TopicLocation, before: _Key) -> None:
        """Waits until the former client has delivered its messages, so that order is kept."""
        former = self._clients.get(before)
        if former is None:
            return
        try:
            left = flush_deliveries(former, _SWITCH_SECONDS)
        except KafkaException as error:
            raise self._ended(before, former, error) from error
        if left:
            raise KafkaUnavailable(
                f"{found.path}: its location or its settings changed, and earlier messages were "
                f"not delivered within {_SWITCH_SECONDS:g}s"
            )

    def _drop_unused(self, key: _Key) -> None:
        """Drops a former client that no path uses any more, unless it has messages or the open
        transaction. Otherwise each change of a listener or policy would leave the client's threads
        behind.
        """
        client = self._clients.get(key)
        if client is None or client is self._in_transaction or len(client):
            return
        if key not in self._last.values():
            self._clients.pop(key, None)
            # Another thread may have sent a message meanwhile; for later ones it waits itself
            # (``produce``).
            if len(client):
                self._clients.setdefault(key, client)

    def _poll(self, timeout: float) -> int:
        reported = 0
        for key, client in list(self._clients.items()):
            try:
                reported += client.poll(timeout)
            except KafkaException as error:
                raise self._ended(key, client, error) from error
        return reported

    def _ended(self, key: _Key, client: KafkaProducer, error: KafkaException) -> KdirError:
        """Returns the error to raise for a client's fatal error; drops the client unless it is
        transactional.
        """
        paths = [path for path, one in self._last.items() if one == key]
        if not self._transactional and self._clients.get(key) is client:
            # A transactional one stays: a new one would fence the producer that has the id now.
            self._clients.pop(key, None)
            self._last = {path: one for path, one in self._last.items() if one != key}
        with suppress(KafkaException):
            flush_deliveries(client, _REPORT_SECONDS)
        where = paths[-1] if paths else f"cluster {key[0]}"
        return client_error(error.args[0], where, dict(key[1]), for_writes=True)

    def _join(self, found: TopicLocation, client: KafkaProducer) -> None:
        if not self._open_transaction:
            raise InvalidArgument("no transaction is open: begin_transaction comes first")
        if self._in_transaction is None:
            client.begin_transaction()
            self._in_transaction = client
        elif self._in_transaction is not client:
            raise InvalidArgument(
                f"{found.path} is of cluster {found.cluster}; the open transaction is of another, "
                f"and a transaction cannot span clusters"
            )

    def _same_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgument(
                "this producer was made by another process; make one after the fork (librdkafka)"
            )


def _with_path(
    found: TopicLocation, callback: Delivered
) -> Callable[[KafkaError | None, Message], None]:
    def reported(error: KafkaError | None, message: Message) -> None:
        callback(error, PathMessage(message, found.cluster, found.path))

    return reported


def flush_deliveries(client: KafkaProducer, seconds: float) -> int:
    """Flushes a client for at most ``seconds`` (infinity: no limit until a fatal error); returns
    the number of messages left.

    Raises:
        KafkaException: the client had a fatal error; the delivery reports that it could make were
            made.
    """
    deadline = time.monotonic() + seconds
    ended: KafkaException | None = None
    while True:
        left = deadline - time.monotonic()
        try:
            count = client.flush(max(0.0, min(left, _FLUSH_SECONDS)))
        except KafkaException as error:
            ended, count = ended or error, len(client)
            if deadline == math.inf:
                deadline = time.monotonic() + _REPORT_SECONDS
        if not count or left <= 0:
            break
    if ended is not None:
        raise ended
    return count
