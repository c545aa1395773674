"""Bounds of what a request holds: every list and text of the contract has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from kdir.v1 import (
    access_pb2,
    admin_pb2,
    directory_pb2,
    federation_pb2,
    policies_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)

from directory.api.rpc.interceptors.malformed_request import MalformedRequest, lenient_deserializer
from directory.api.rpc.interceptors.request_bounds import BOUNDED_ELSEWHERE, RequestBounds
from directory.api.rpc.method_rights import CHECKS, RequestSize
from directory.server.config import Limits
from resolver.errors import LimitExceeded

BOUNDS = RequestBounds(list_items=100, text_bytes=1_000)
MODULES = (
    access_pb2,
    admin_pb2,
    directory_pb2,
    federation_pb2,
    policies_pb2,
    resolve_pb2,
    scan_pb2,
    watch_pb2,
)
REQUESTS = [
    method.input_type
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def fields(kind: Descriptor, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if kind.full_name in BOUNDED_ELSEWHERE or len(above) > 5:
        return
    for field in kind.fields:
        yield (*above, field.name), field
        if field.message_type is not None:
            yield from fields(field.message_type, (*above, field.name))


def given(kind: Descriptor, way: tuple[str, ...], value: Any) -> Any:
    """Returns a request in which a nested field has this value."""
    message = GetMessageClass(kind)()
    at = message
    for name in way[:-1]:
        part = getattr(at, name)
        at = part.add() if hasattr(part, "add") else part
        if at is part:
            part.SetInParent()
    target = getattr(at, way[-1])
    if isinstance(value, list):
        target.extend(value)
    else:
        setattr(at, way[-1], value)
    return message


LISTS = [
    (kind, way, field)
    for kind in REQUESTS
    for way, field in fields(kind)
    if field.is_repeated and "path" not in field.name
]
TEXTS = [
    (kind, way, field)
    for kind in REQUESTS
    for way, field in fields(kind)
    if field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}
    and "path" not in field.name
    and not field.is_repeated
]


def elements(field: Any, count: int) -> list[Any]:
    if field.message_type is not None:
        return [GetMessageClass(field.message_type)() for _ in range(count)]
    return ["x"] * count if field.type == FieldDescriptor.TYPE_STRING else [1] * count


def read(message: Any) -> Any:
    return lenient_deserializer(type(message), BOUNDS)(message.SerializeToString())


def named(found: Any, way: tuple[str, ...]) -> None:
    assert isinstance(found, MalformedRequest)
    assert isinstance(found.error, LimitExceeded)
    assert found.error.metadata["field"] == ".".join(way)


@pytest.mark.parametrize(("kind", "way", "field"), LISTS, ids=lambda one: getattr(one, "name", ""))
def test_every_list_of_a_request_is_bounded(
    kind: Descriptor, way: tuple[str, ...], field: Any
) -> None:
    assert not isinstance(read(given(kind, way, elements(field, 100))), MalformedRequest)
    for count in (101, 1_000):
        named(read(given(kind, way, elements(field, count))), way)


@pytest.mark.parametrize(("kind", "way", "field"), TEXTS, ids=lambda one: getattr(one, "name", ""))
def test_every_text_of_a_request_is_bounded(
    kind: Descriptor, way: tuple[str, ...], field: Any
) -> None:
    is_text = field.type == FieldDescriptor.TYPE_STRING
    for text in ("x" * 1_000, "é" * 500):
        value = text if is_text else text.encode()
        assert not isinstance(read(given(kind, way, value)), MalformedRequest)
    for text in ("x" * 1_001, "é" * 501, "x" * 10_000):
        named(read(given(kind, way, text if is_text else text.encode())), way)


def test_there_are_such_lists_and_texts() -> None:
    assert {".".join(way) for _, way, _ in LISTS} == {"grants", "rules", "kinds"}
    assert len(TEXTS) > 40


def test_paths_and_entries_are_left_to_their_own_bounds() -> None:
    batch = resolve_pb2.BatchResolveRequest(paths=["/la"] * 5_000)
    assert read(batch) == batch
    update = directory_pb2.UpdateEntryRequest(update_mask={"paths": ["x" * 5_000] * 200})
    update.entry.policies.description = "x" * 5_000
    assert read(update) == update


@pytest.mark.parametrize("method", CHECKS)
def test_a_request_of_too_many_bytes_is_not_parsed(method: str) -> None:
    size = CHECKS[method].request
    most = BOUNDS.most_bytes(size)
    parsed = list[int]()

    class Kind:
        DESCRIPTOR = resolve_pb2.ResolveRequest.DESCRIPTOR

        @staticmethod
        def FromString(raw: bytes) -> Any:
            parsed.append(len(raw))
            return resolve_pb2.ResolveRequest()

    receive: Any = lenient_deserializer
    read_bytes = receive(Kind, BOUNDS, size)
    assert not isinstance(read_bytes(b"x" * most), MalformedRequest)
    for count in (most + 1, 10 * most):
        named(read_bytes(b"x" * count), ("request",))
    assert parsed == [most]


def test_what_other_bounds_allow_fits_into_the_bytes_of_a_request() -> None:
    """By the defaults, and whatever the settings are."""
    for limits in (Limits(), Limits(text_bytes=1 << 20), Limits(policies_bytes=1 << 22)):
        bounds = RequestBounds(
            limits.list_items, limits.text_bytes, limits.policies_bytes, limits.max_request_bytes
        )
        sizes = [bounds.most_bytes(size) for size in RequestSize]
        assert sizes[0] >= min(3 * limits.text_bytes + 4096, limits.max_request_bytes)
        assert sizes[1] >= min(3 * limits.policies_bytes, limits.max_request_bytes)
        assert sizes == sorted(sizes)
        assert sizes[2] == limits.max_request_bytes
