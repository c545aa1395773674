"""Bounds of every request: bytes, elements of a list or map, bytes of a text.

Checked where the request is received, for all methods alike, also those added later. Some contents
have finer bounds of their own: paths (``resolver.path``), entries and their policies, masks, and
the rows that a parent and a child send each other over their link.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from directory.api.rpc.method_rights import RequestSize
from directory.namespace.bounds import DEFAULT_BOUNDS
from resolver.errors import LimitExceeded

__all__ = ["BOUNDED_ELSEWHERE", "RequestBounds"]

BOUNDED_ELSEWHERE: Final = frozenset(
    {
        "kdir.v1.Entry",
        "kdir.v1.Policies",
        "kdir.v1.LinkRequest",
        "google.protobuf.FieldMask",
    }
)
"""Messages with bounds of their own."""


@dataclass(frozen=True, slots=True)
class RequestBounds:
    """Bounds of one server; see ``directory.server.config.Limits`` of the same names."""

    list_items: int
    text_bytes: int
    policies_bytes: int = DEFAULT_BOUNDS.policies_bytes
    max_request_bytes: int = 4 << 20

    def most_bytes(self, size: RequestSize) -> int:
        """Returns the most bytes of a request."""
        if size is RequestSize.MESSAGE:
            return self.max_request_bytes
        most = 4 * self.text_bytes
        if size is RequestSize.ENTRY:
            most += 4 * self.policies_bytes
        return min(most, self.max_request_bytes)

    def size_refusal(self, found: int, size: RequestSize) -> LimitExceeded | None:
        """Returns the error for a request of this many bytes; None if it may be parsed."""
        most = self.most_bytes(size)
        if found <= most:
            return None
        return LimitExceeded(
            f"request: found {found} bytes; expected at most {most} for this method ({size.value})",
            field="request",
            limit=most,
        )

    def small_bytes(self, size: RequestSize) -> int:
        """Returns the bytes up to which a request cannot exceed a bound and is not inspected."""
        return min(self.most_bytes(size), self.list_items, self.text_bytes)

    def refusal(self, request: Message) -> LimitExceeded | None:
        """Returns the error for a parsed request; None if it is within the bounds."""
        return next(self._excesses(request, ""), None)

    def _excesses(self, message: Message, above: str) -> Iterator[LimitExceeded]:
        if message.DESCRIPTOR.full_name in BOUNDED_ELSEWHERE:
            return
        for field, value in message.ListFields():
            name = f"{above}{field.name}"
            if _is_path(field):
                continue
            values: Any = [value]
            if field.is_repeated:
                if len(value) > self.list_items:
                    yield self._over(name, f"{len(value)} elements", self.list_items, "list_items")
                    return
                values = [*value, *value.values()] if hasattr(value, "values") else value
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                for one in values:
                    if isinstance(one, Message):
                        yield from self._excesses(one, f"{name}.")
                    else:
                        yield from self._long(name, one)
            else:
                for one in values:
                    yield from self._long(name, one)

    def _long(self, name: str, value: object) -> Iterator[LimitExceeded]:
        if not isinstance(value, str | bytes) or len(value) * 4 <= self.text_bytes:
            return
        size = len(value.encode()) if isinstance(value, str) else len(value)
        if size > self.text_bytes:
            yield self._over(name, f"{size} bytes", self.text_bytes, "text_bytes")

    @staticmethod
    def _over(name: str, found: str, most: int, setting: str) -> LimitExceeded:
        return LimitExceeded(
            f"{name}: found {found}; expected at most {most} (limits.{setting})",
            field=name,
            limit=most,
        )


def _is_path(field: FieldDescriptor) -> bool:
    """True if the field holds paths: the grammar bounds each, and ``max_batch_paths``
    their number.
    """
    return field.type == FieldDescriptor.TYPE_STRING and "path" in field.name
