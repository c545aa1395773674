"""Requests and answers about access rights, for ``Resolver`` and the command line. The owner of a
path makes the decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from resolver.errors import InvalidArgument

if TYPE_CHECKING:
    from kdir.v1 import access_pb2

__all__ = [
    "Checked",
    "any_request",
    "check_request",
    "check_result",
    "grant_text",
    "grants_of",
    "operation_of",
    "principal_of",
    "resource_of",
]


class Checked(NamedTuple):
    """Answer of an access check: whether the operation is allowed. ``message`` is the reason, for
    people.
    """

    allowed: bool
    message: str
    deciding_path: str
    """Path of the deciding grant, or of the closed directory; empty if neither decided, or if it is
    hidden from the caller.
    """
    response: access_pb2.CheckAccessResponse
    """Whole answer, with each level of the path if requested."""

    def __bool__(self) -> bool:
        return self.allowed


def _number(enum: Any, prefix: str, part: str, what: str) -> int:
    name = prefix + part.strip().upper().replace("-", "_")
    names = [one for one, _ in enum.items() if not one.endswith("_UNSPECIFIED")]
    if name in names:
        return int(enum.Value(name))
    parts = [one.removeprefix(prefix).lower().replace("_", "-") for one in names]
    near = get_close_matches(part.strip().lower(), parts, n=1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(parts)}"
    raise InvalidArgument(f"{what}: found {part!r}; {hint}", field=what)


def operation_of(part: str) -> int:
    """Returns the number of an operation such as ``read`` or ``describe-configs``.

    Raises:
        InvalidArgument: unknown name; the message has the most similar one.
    """
    from kdir.v1 import access_pb2

    return _number(access_pb2.Operation, "OPERATION_", part, "operation")


def resource_of(part: str) -> int:
    """Returns the number of a resource kind: ``topic``, ``group``, ``transactional-id`` or
    ``cluster``.

    Raises:
        InvalidArgument: unknown name; the message has the most similar one.
    """
    from kdir.v1 import access_pb2

    return _number(access_pb2.ResourceType, "RESOURCE_TYPE_", part, "resource kind")


def principal_of(text: str) -> str:
    """Returns the principal of a text: ``alice`` becomes ``User:alice``, and ``*`` (everybody)
    ``User:*``.
    """
    return text if ":" in text else f"User:{text}"


def grants_of(
    principal: str,
    operations: Sequence[str],
    *,
    deny: bool = False,
    host: str = "",
    resource: str = "topic",
    name: str = "",
) -> list[access_pb2.Grant]:
    """Returns one grant for each operation.

    Raises:
        InvalidArgument: an unknown operation or kind.
    """
    from kdir.v1 import access_pb2

    permission = access_pb2.PERMISSION_DENY if deny else access_pb2.PERMISSION_ALLOW
    kind: Any = resource_of(resource)
    made = []
    for part in operations:
        operation: Any = operation_of(part)
        made.append(
            access_pb2.Grant(
                principal=principal_of(principal),
                host=host or "*",
                operation=operation,
                permission=permission,
                resource_type=kind,
                resource_name=name,
            )
        )
    return made


def grant_text(grant: access_pb2.Grant) -> str:
    """Returns a grant as text for people, such as ``ALLOW User:alice READ TOPIC from *``."""
    from kdir.v1 import access_pb2

    parts = [
        access_pb2.Permission.Name(grant.permission).removeprefix("PERMISSION_"),
        grant.principal,
        access_pb2.Operation.Name(grant.operation).removeprefix("OPERATION_"),
        access_pb2.ResourceType.Name(grant.resource_type).removeprefix("RESOURCE_TYPE_"),
    ]
    if grant.resource_name:
        parts.append(grant.resource_name)
    return f"{' '.join(parts)} from {grant.host}"


def check_request(  # noqa: PLR0913 - as Resolver.check has them
    path: str,
    principal: str,
    operation: str,
    *,
    host: str = "",
    resource: str = "topic",
    name: str = "",
    kind: int = 0,
    explain: bool = False,
    token: str = "",
) -> access_pb2.CheckAccessRequest:
    """Returns the request of an access check.

    Raises:
        InvalidArgument: an unknown operation or kind.
    """
    from kdir.v1 import access_pb2

    number: Any = operation_of(operation)
    resource_type: Any = resource_of(resource)
    entry_kind: Any = kind
    return access_pb2.CheckAccessRequest(
        principal=principal_of(principal),
        host=host,
        operation=number,
        path=path,
        resource_type=resource_type,
        resource_name=name,
        kind=entry_kind,
        explain=explain,
        token=token,
    )


def any_request(
    principal: str, operation: str, resource: str, *, host: str
) -> access_pb2.AuthorizeAnyRequest:
    """Returns the request for ``Resolver.authorize_any`` (KIP-679).

    Raises:
        InvalidArgument: an unknown operation or kind.
    """
    from kdir.v1 import access_pb2

    number: Any = operation_of(operation)
    kind: Any = resource_of(resource)
    return access_pb2.AuthorizeAnyRequest(
        principal=principal_of(principal), host=host, operation=number, resource_type=kind
    )


def check_result(response: access_pb2.CheckAccessResponse) -> Checked:
    """Returns the answer of an access check from its response."""
    return Checked(response.allowed, response.message, response.deciding_path, response)
