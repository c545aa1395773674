"""Converts errors of Kafka clients to errors with paths, reasons and missing grants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from resolver.errors import KafkaRejected, KafkaUnavailable, KdirError, PermissionDenied

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

__all__ = ["LastReason", "client_error"]

_UNKNOWN_TOPIC: Final = 3
"""UNKNOWN_TOPIC_OR_PARTITION of Kafka's protocol."""
_FENCED: Final = -144
"""_FENCED of librdkafka: another client has this instance's id."""
_STATE: Final = re.compile(r" \(after \d+ms in state (?:[^()]|\(s\))*\)")


class LastReason:
    """Last reason why a client could not use a broker, from its ``error_cb``."""

    def __init__(self) -> None:
        self.text = ""
        """The reason; empty = none was reported."""
        self.is_all_down = False
        """True if all brokers have become unreachable; the caller resets it."""

    def on_error(self, error: KafkaError) -> None:
        """Stores the reason of an error; to be called by ``error_cb``."""
        # "All brokers are down" says less than the reason that came before it.
        if error.name() == "_ALL_BROKERS_DOWN":
            self.is_all_down = True
        else:
            self.text = _STATE.sub("", error.str())

    def text_after(self, text: str) -> str:
        """Returns the reason as the end of a sentence that begins with ``text``; empty if there is
        none, or if ``text`` contains it.
        """
        return f": {self.text}" if self.text and self.text not in _STATE.sub("", text) else ""


def client_error(
    error: KafkaError,
    path: str,
    settings: Mapping[str, str],
    *,
    for_writes: bool,
    operation: str = "",
    reason: LastReason | None = None,
) -> KdirError:
    """Returns kdir's error for an error of a path's Kafka client: PermissionDenied for a denial,
    KafkaUnavailable for a local or retriable error, else KafkaRejected.

    Args:
        settings: settings of the client; the message names its user, group and transactional id.
        operation: the denied operation, if it is neither read nor write.
        reason: text added to the message of a local error that may pass.
    """
    own = operation or ("write" if for_writes else "read")
    missing = _missing(error.code(), settings, own, for_writes=for_writes)
    if missing is None:
        is_final = error.fatal() or error.code() == _FENCED
        may_pass = not is_final and (error.code() < 0 or error.retriable())
        kind = KafkaUnavailable if may_pass else KafkaRejected
        hint = f"; its entry: kdir stat {path}" if error.code() == _UNKNOWN_TOPIC else ""
        why = reason.text_after(error.str()) if reason and may_pass and error.code() < 0 else ""
        return kind(f"{path}: {error.str()}{why}{hint}", path=path)
    what, message = missing
    user = settings.get("sasl.username", "")
    asked = (
        f"kdir check {user or 'PRINCIPAL'} {message[0]} {' '.join([path, *message[1:]])} --explain"
    )
    return PermissionDenied(
        f"{path}: Kafka denies {user or 'this user'} {what} ({error.str()}): {asked} says which "
        f"grant is missing or in the way",
        path=path,
        principal=f"User:{user}" if user else "",
        kafka_error=error.name(),
    )


def _missing(
    code: int, settings: Mapping[str, str], own: str, *, for_writes: bool
) -> tuple[str, tuple[str, ...]] | None:
    """Returns the denied right, and the arguments of ``kdir check`` that explain it; None if the
    code is no denial.

    Codes are those of Kafka's protocol (org.apache.kafka.common.protocol.Errors).
    """
    match code:
        case 29:  # TOPIC_AUTHORIZATION_FAILED
            return own.upper(), (own,)
        case 30:  # GROUP_AUTHORIZATION_FAILED
            group = settings.get("group.id", "")
            return f"READ on group {group}", ("read", "--group", group)
        case 31 if for_writes:  # CLUSTER_AUTHORIZATION_FAILED
            # An idempotent producer needs WRITE on at least one topic (KIP-679).
            return "WRITE", ("write",)
        case 53:  # TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            name = settings.get("transactional.id", "")
            return f"WRITE on transactional id {name}", ("write", "--transactional-id", name)
        case _:
            return None
