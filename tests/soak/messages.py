"""Between the model's words and the contract's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kdir.v1 import access_pb2, directory_pb2, entry_pb2, policies_pb2

from tests.soak.model import GrantLine, Op

__all__ = [
    "answer_of",
    "effective_of",
    "entry_of",
    "field_values",
    "grant_lines",
    "request_of",
]

_FLAGS = {"true": True, "false": False}


def kind_number(kind: str) -> int:
    """Returns the contract's number of a kind."""
    return int(entry_pb2.EntryKind.Value(f"ENTRY_KIND_{kind.upper()}"))


def request_of(op: Op, token: str, request_id: str) -> tuple[str, Any]:
    """Returns the method, such as ``DirectoryService.CreateEntry``, and its request."""
    kind: Any = kind_number(op.kind)
    match op.verb:
        case "mkdir" | "create" | "ln":
            request: Any = directory_pb2.CreateEntryRequest(
                path=op.path, entry=_new_entry(op), make_parents=op.parents
            )
            name = "DirectoryService.CreateEntry"
        case "rm":
            request = directory_pb2.DeleteEntryRequest(
                path=op.path, kind=kind, recursive=op.recursive
            )
            name = "DirectoryService.DeleteEntry"
        case "mv":
            request = directory_pb2.MoveEntryRequest(path=op.path, kind=kind, new_path=op.new_path)
            name = "DirectoryService.MoveEntry"
        case "set":
            request = directory_pb2.UpdateEntryRequest(path=op.path, kind=kind)
            _fill_fields(request, op)
            name = "DirectoryService.UpdateEntry"
        case "grant":
            request = access_pb2.AddGrantsRequest(path=op.path, kind=kind)
            name = "AccessService.AddGrants"
        case "revoke":
            request = access_pb2.RemoveGrantsRequest(path=op.path, kind=kind)
            name = "AccessService.RemoveGrants"
        case _:
            raise AssertionError(op.verb)
    if op.grants:
        request.grants.extend(map(_grant, op.grants))
    request.request_id = request_id
    if "token" in request.DESCRIPTOR.fields_by_name:
        request.token = token
    return name, request


def _new_entry(op: Op) -> entry_pb2.Entry:
    match op.kind:
        case "directory":
            return entry_pb2.Entry(directory=entry_pb2.Directory())
        case "topic":
            return entry_pb2.Entry(topic=entry_pb2.Topic())
        case _:
            link = entry_pb2.Link(targets=op.targets)
            if op.mode == "union":
                link.mode = entry_pb2.LINK_MODE_UNION
            link.fall_back_on_absent = op.mode == "fallback"
            return entry_pb2.Entry(link=link)


def _grant(line: GrantLine) -> access_pb2.Grant:
    return access_pb2.Grant(
        principal=line[0],
        host="*",
        operation=access_pb2.Operation.Value(f"OPERATION_{line[1]}"),  # type: ignore[arg-type]
        permission=access_pb2.Permission.Value(f"PERMISSION_{line[2]}"),  # type: ignore[arg-type]
        resource_type=access_pb2.RESOURCE_TYPE_TOPIC,
    )


def _fill_fields(request: directory_pb2.UpdateEntryRequest, op: Op) -> None:
    policies = request.entry.policies
    for name, value in op.fields:
        if name == "closed":
            request.update_mask.paths.append("directory.closed")
            request.entry.directory.closed = value == "true"
            continue
        request.update_mask.paths.append(f"policies.{name}")
        if value is None:
            continue
        group, _, key = name.partition(".")
        if key:
            getattr(policies, group)[key].value = value
        elif name == "read_only":
            policies.read_only = _FLAGS[value]
        elif name == "max_topics":
            policies.max_topics = int(value)
        else:
            setattr(policies, name, value)


def field_values(entry: entry_pb2.Entry) -> dict[str, str]:
    """Returns an entry's own settings in the model's words."""
    policies = entry.policies
    found: dict[str, str] = {}
    for name in ("owner", "contact", "description", "max_topics", "read_only"):
        if policies.HasField(name):
            found[name] = _text(getattr(policies, name))
    for group in ("tags", "topic_config"):
        for key, value in getattr(policies, group).items():
            found[f"{group}.{key}"] = value.value
    if entry.directory.closed:
        found["closed"] = "true"
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def entry_of(entry: entry_pb2.Entry) -> object:
    """Returns an entry as ``model.entry_view`` has it."""
    kind = entry.WhichOneof("kind")
    return (
        entry.path,
        kind,
        frozenset(field_values(entry).items()),
        tuple(entry.link.targets),
        _mode(entry.link),
    )


def _mode(link: entry_pb2.Link) -> str:
    if link.mode == entry_pb2.LINK_MODE_UNION:
        return "union"
    return "fallback" if link.fall_back_on_absent else ""


def grant_lines(grants: Iterable[access_pb2.Grant]) -> frozenset[GrantLine]:
    """Grants in the model's words."""
    return frozenset(
        (
            one.principal,
            access_pb2.Operation.Name(one.operation).removeprefix("OPERATION_"),
            access_pb2.Permission.Name(one.permission).removeprefix("PERMISSION_"),
        )
        for one in grants
    )


def effective_of(answer: policies_pb2.GetEffectivePoliciesResponse, top: str) -> object:
    """Returns what holds and is set below ``top``, as ``model.effective_view`` has it."""
    return frozenset(
        (one.field.replace("[", ".").replace("]", ""), one.value, one.source_path)
        for one in answer.values
        if one.source_path.startswith(top + "/") or one.source_path == top
    )


def answer_of(op: Op, response: Any) -> Mapping[str, object]:
    """Returns what an answer to a write says, in the words of ``model.Applied.answer``; a second
    answer to the same request id must say the same.
    """
    match op.verb:
        case "rm":
            return {
                "topic_count": response.topic_count,
                "directory_count": response.directory_count,
            }
        case "grant" | "revoke":
            changed = response.added if op.verb == "grant" else response.removed
            return {"grants": grant_lines(response.grants), "changed": grant_lines(changed)}
        case "set":
            return {"fields": field_values(response.entry), "id": response.entry.entry_id}
        case _:
            return {"id": response.entry.entry_id, "path": response.entry.path}
