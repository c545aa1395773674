"""Settings of a Kafka client for a path: those of the connection to its cluster, and the layers of
all others.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resolver.errors import InvalidArgument
from resolver.kafka.client_settings import PROGRAM, Client, SettingLayer, problem_with

if TYPE_CHECKING:
    from confluent_kafka import KafkaException

    from resolver.topic_location import TopicLocation

__all__ = ["connection", "kafka_error_text", "setting_layers", "split_settings"]


def connection(found: TopicLocation, listener: str = "") -> dict[str, str]:
    """Returns the settings that connect to a topic's brokers by ``listener`` (empty = the first).
    Credentials come from the program's settings.

    Raises:
        InvalidArgument: the path is no topic, or its cluster has no such listener.
    """
    one = found.choose_listener(listener)
    settings = {
        "bootstrap.servers": ",".join(one.bootstrap_servers),
        "security.protocol": one.security_protocol or "PLAINTEXT",
    }
    if one.sasl_mechanism:
        settings["sasl.mechanism"] = one.sasl_mechanism
    return settings


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns a program's settings in two parts: those with text or numbers, and the callbacks and
    the logger, which confluent-kafka takes as objects.

    Raises:
        InvalidArgument: a setting names brokers.
    """
    for name in ("bootstrap.servers", "metadata.broker.list"):
        if name in settings:
            raise InvalidArgument(
                f"{name}: the path of a topic says where its brokers are; leave it out", field=name
            )
    callbacks = {
        name: value
        for name, value in settings.items()
        if callable(value) or isinstance(value, logging.Logger)
    }
    return {name: settings[name] for name in settings if name not in callbacks}, callbacks


def kafka_error_text(error: KafkaException) -> str:
    """Returns the text of an error of Kafka's client."""
    return str(error.args[0].str())


def setting_layers(
    settings: Mapping[str, Any],
    found: TopicLocation | None,
    client: Client = Client.PRODUCER,
    origin: str = PROGRAM,
) -> list[SettingLayer]:
    """Returns the defaults that the policies of a path set, then the settings of the program, or of
    the command line.
    Defaults that are not valid are left out: a server of another version may have accepted them.
    """
    layers = []
    effective = None if found is None else found.effective
    if found is not None and effective is not None:
        answered = {
            key: one.value
            for key, one in getattr(effective, f"{client}_defaults").items()
            if not one.cleared and not problem_with(client, key, one.value)
        }
        if answered:
            layers.append(SettingLayer(f"the policies of {found.path}", answered))
    layers.append(SettingLayer(origin, settings))
    return layers
