"""A directory server in whose answers every free text is what somebody chose."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from resolver.errors import Unimplemented
from resolver.testing import MemoryDirectory, MemoryTransport
from resolver.transport import method

__all__ = ["TOPIC", "hostile_transport"]

TOPIC: Final = "/la/search/clicks"

_CHECKED: Final = {
    "path": TOPIC,
    "new_path": TOPIC,
    "path_before": "/la/search",
    "source_path": "/la",
    "mount": "/la",
    "parent_mount": "/",
    "nearest_directory": "/la",
    "link": "/la",
    "targets": "/la",
    "cluster_id": "kc-la",
    "incarnation": "memory",
    "physical_name": "clicks",
    "Listener.name": "internal",
    "bootstrap_servers": "broker:9092",
    "security_protocol": "",
    "sasl_mechanism": "",
    "endpoint": "",
    "endpoints": "",
    "token": "",
    "next_page_token": "",
}
"""What is no free text: it is parsed, compared or dialled, and refused where it is not right."""
_DEEPEST: Final = 6


def hostile_transport(text: str) -> tuple[MemoryTransport, str]:
    """Returns a transport with one server that has ``text`` in every field of every answer that may
    hold any text; and the server's endpoint.
    """
    directory = MemoryDirectory()
    endpoint = directory.cluster("/la", "la", bootstrap_servers="broker:9092")
    directory.topic(TOPIC, "clicks", partitions=3)
    honest = directory.transport.handler(endpoint)

    def answer(name: str, request: Any) -> Any:
        rpc = method(name)
        try:
            response = honest(name, request)
        except Unimplemented:
            response = rpc.response()
        _fill(response, text, 0)
        return iter([response]) if rpc.streams else response

    transport = MemoryTransport()
    transport.serve(endpoint, answer)
    return transport, endpoint


def _fill(message: Message, text: str, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None:
            chosen = message.WhichOneof(oneof.name)
            if chosen is not None and chosen != field.name:
                continue
            if chosen is None and field != oneof.fields[0]:
                continue
        if field.message_type is not None:
            _fill_below(message, field, text, depth + 1)
        elif field.type == field.TYPE_STRING:
            _fill_text(message, field, text)


def _fill_text(message: Message, field: Any, text: str) -> None:
    own = f"{message.DESCRIPTOR.name}.{field.name}"
    checked = _CHECKED.get(own, _CHECKED.get(field.name))
    value: Any = getattr(message, field.name)
    if checked is not None and (value or not checked):
        return
    if field.is_repeated:
        value.append(text if checked is None else checked)
    else:
        setattr(message, field.name, text if checked is None else checked)


def _fill_below(message: Message, field: Any, text: str, depth: int) -> None:
    of = field.message_type
    if of is None or depth > _DEEPEST or of.full_name.startswith("google."):
        return
    value: Any = getattr(message, field.name)
    if of.GetOptions().map_entry:
        kind = of.fields_by_name["value"]
        if kind.message_type is not None:
            _fill(value[text], text, depth)
        elif kind.type == kind.TYPE_STRING:
            value[text] = text
    elif field.is_repeated:
        for one in value or [value.add()]:
            _fill(one, text, depth)
    else:
        value.SetInParent()
        _fill(value, text, depth)
