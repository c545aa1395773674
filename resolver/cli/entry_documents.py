"""Documents of entries: from YAML to the desired state of a tree, and from entries to YAML values;
no network calls.

A document may have what ``kdir set``, ``kdir grant``, ``kdir create`` and ``kdir ln`` accept.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final, NoReturn

from resolver.access_requests import grant_text, grants_of
from resolver.cli.parser import UsageError
from resolver.cli.policy_arguments import assign, field_of, forget
from resolver.entry_fields import policy_fields
from resolver.errors import KdirError
from resolver.message_values import plain
from resolver.path import Path
from resolver.printable import cut_shown
from resolver.user_config import unreadable_file_error

if TYPE_CHECKING:
    from kdir.v1 import access_pb2, entry_pb2

__all__ = [
    "FIELDS",
    "Document",
    "Grants",
    "as_document",
    "grants_by_text",
    "own_fields",
    "read_documents",
]

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "directory": ("policies", "grants"),
    "topic": ("partitions", "replication_factor", "physical_name", "policies", "grants"),
    "link": ("targets", "mode", "writes", "fall_back_on_absent"),
    "mount": ("cluster", "policies", "grants"),
}
"""The fields of a document beside ``path`` and ``kind``."""
_LINK_DEFAULTS: Final[Mapping[str, str]] = {
    "mode": "first",
    "writes": "stay",
    "fall_back_on_absent": "false",
}
_ABOUT_GRANTS: Final = (
    "principal", "operations", "deny", "host", "group", "transactional-id", "cluster",
)  # fmt: skip
_RESOURCES: Final = _ABOUT_GRANTS[4:]
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)

Grants = Mapping[str, "access_pb2.Grant"]
"""Grants of an entry by their text, which differs for each."""


@dataclass(frozen=True, slots=True)
class Document:
    """One entry as a document describes it."""

    where: str
    """The file and the number of the document in it, for messages."""
    path: Path
    kind: str
    entry: entry_pb2.Entry
    """The fields of its kind, as ``CreateEntry`` takes them, and policies."""
    own: Mapping[str, str | None] | None
    """Its own settings, by the keys of ``kdir set``; None = they are left as they are."""
    grants: Grants | None
    """None = left as they are."""
    cluster: str = ""
    """For a mount: the name of its child."""

    @property
    def is_topic(self) -> bool:
        """True if it is a topic: any other kind is a container."""
        return self.kind == "topic"

    @property
    def kind_name(self) -> str:
        """The name of the ``kdir.v1.EntryKind`` in requests about it; for a mount, that of the
        child's root directory.
        """
        return f"ENTRY_KIND_{('directory' if self.kind == 'mount' else self.kind).upper()}"

    @property
    def order(self) -> tuple[tuple[str, ...], bool]:
        """Sort key: a document comes after those of the entries above."""
        return self.path.segments, self.is_topic

    def fail(self, field: str, found: object, expected: str) -> NoReturn:
        """Raises the error of a field.

        Raises:
            UsageError
        """
        _fail(self.where, field, found, expected)


def _fail(where: str, field: str, found: object, expected: str) -> NoReturn:
    shown = cut_shown(found)
    raise UsageError(f"{where}: {field}: found {shown}; expected {expected}", verb="apply")


def read_documents(files: Sequence[str]) -> list[Document]:
    """Returns the documents of YAML files, ``-`` is stdin, parents first.

    Raises:
        UsageError: a document is invalid; names the file, the document, the field, and what was
            found and expected.
    """
    found: dict[tuple[tuple[str, ...], bool], Document] = {}
    for file in files:
        for number, content in _load(file):
            one = _document(content, f"{file}: document {number}")
            other = found.setdefault(one.order, one)
            if other is not one:
                one.fail("path", str(one.path), f"a path once; it is in {other.where}, too")
    return [found[order] for order in sorted(found)]


_MOST_LEVELS: Final = 32
_MOST_REPEATED: Final = 1_000_000
"""Most characters that the aliases of one document may stand for; a node counts as one, too."""


def _load(file: str) -> Iterator[tuple[int, Any]]:
    """Yields the documents of a file with their numbers; without those that hold nothing."""
    import yaml

    try:
        text = sys.stdin.read() if file == "-" else FilePath(file).read_text("utf-8")
    except OSError as error:
        raise unreadable_file_error(error, file) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: is not UTF-8: {error}", verb="apply") from None
    try:
        _refuse_large(text, file)
        for number, content in enumerate(yaml.load_all(text, _loader()), start=1):
            if content is not None:
                yield number, content
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        # The last four are what PyYAML raises for values that their tags do not fit.
        why = " ".join(str(error).replace(' in "<unicode string>",', " in").split())
        raise UsageError(f"{file}: is not YAML: {why}", verb="apply") from None


def _refuse_large(text: str, file: str) -> None:
    """Refuses text that is nested deeper than any document, since libyaml reads levels recursively,
    and too many of them end the process; and text whose aliases repeat too much, since aliases of
    aliases would fill the memory.

    Raises:
        UsageError
    """
    import yaml

    def refuse(event: Any, why: str) -> NoReturn:
        line = event.start_mark.line + 1 if event.start_mark else 1
        raise UsageError(f"{file}: line {line}: {why}", verb="apply")

    open_ones: list[tuple[str | None, int]] = []
    """The anchors of the open collections, and the size before each, in characters and nodes."""
    sizes: dict[str | None, int] = {}
    size = repeated = 0
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.DocumentStartEvent):
            sizes, repeated = {}, 0
        elif isinstance(event, yaml.CollectionStartEvent):
            open_ones.append((event.anchor, size))
            size += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_ones.pop()
            sizes[anchor] = size - before
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = len(event.value) + 1
            size += len(event.value) + 1
        elif isinstance(event, yaml.AliasEvent):
            repeated += sizes.get(event.anchor, 0)
            size += sizes.get(event.anchor, 0)
        if len(open_ones) > _MOST_LEVELS:
            refuse(event, f"nested more than {_MOST_LEVELS} levels deep; documents have 4 at most")
        if repeated > _MOST_REPEATED:
            refuse(event, f"the aliases of a document repeat more than {_MOST_REPEATED} characters")


def _loader() -> Any:
    """Returns a loader that keeps all values but null as the text written (``1.10``, ``no``), and
    refuses duplicate keys.
    """
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
            if not isinstance(node, yaml.MappingNode):
                return super().construct_mapping(node, deep=deep)  # refuses it
            names = [key.value for key, _ in node.value]
            twice = [name for at, name in enumerate(names) if name in names[:at]]
            if twice:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {twice[0]!r} is there twice", node.start_mark
                )
            return super().construct_mapping(node, deep=deep)

    null = "tag:yaml.org,2002:null"
    Loader.yaml_implicit_resolvers = {
        first: kept
        for first, every in Loader.yaml_implicit_resolvers.items()
        if (kept := [one for one in every if one[0] == null])
    }
    return Loader


def _document(content: Any, where: str) -> Document:
    from kdir.v1 import entry_pb2

    if not isinstance(content, dict):
        _fail(where, "document", content, "a mapping with path and kind")
    if content.get("kind") not in (*FIELDS,):
        # A misspelt key is often why there is no kind.
        every = dict.fromkeys(name for names in FIELDS.values() for name in names)
        _check_names(where, "", content, ("path", "kind", *every))
    kind = _text(where, content, "kind")
    if kind not in FIELDS:
        _fail(where, "kind", kind, f"one of {', '.join(FIELDS)}")
    _check_names(where, "", content, ("path", "kind", *FIELDS[kind]))
    path = _path(where, "path", _text(where, content, "path"))
    entry = entry_pb2.Entry()
    getattr(entry, "directory" if kind == "mount" else kind).SetInParent()
    own = _own(where, kind, entry, content["policies"]) if "policies" in content else None
    grants = _grants(where, content["grants"]) if "grants" in content else None
    if kind == "topic":
        for name in ("partitions", "replication_factor"):
            if name in content:
                setattr(entry.topic, name, _number(where, name, content[name]))
        if "physical_name" in content:
            entry.topic.physical_name = _text(where, content, "physical_name")
    elif kind == "link":
        _link(where, entry, content)
    cluster = _text(where, content, "cluster") if "cluster" in content else ""
    return Document(where, path, kind, entry, own, grants, cluster)


def _check_names(where: str, inside: str, found: Mapping[Any, Any], known: Sequence[str]) -> None:
    from difflib import get_close_matches

    for name in found:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            _fail(where, f"{inside}field", name, f"one of {', '.join(known)}{hint}")


def _text(where: str, content: Mapping[str, Any], field: str) -> str:
    value = content.get(field)
    if not isinstance(value, str) or not value:
        _fail(where, field, value, "a text")
    return value


def _path(where: str, field: str, text: str) -> Path:
    try:
        return Path.parse(text)
    except KdirError as error:
        _fail(where, field, text, f"a canonical path: {error.message}")


def _number(where: str, field: str, value: Any) -> int:
    if not (isinstance(value, str) and _WHOLE.fullmatch(value) and 0 < int(value) < 2**31):
        _fail(where, field, value, "a whole number from 1")
    return int(value)


def _assigned(where: str, field: str, entry: entry_pb2.Entry, key: str, value: str) -> None:
    """Puts a value into an entry as ``kdir set`` does."""
    try:
        assign(entry, f"{key}={value}", "apply")
    except UsageError as error:
        expected = error.message.rpartition(": ")[2].removesuffix(" was expected")
        _fail(where, field, value, expected)


def _own(where: str, kind: str, entry: entry_pb2.Entry, found: Any) -> dict[str, str | None]:
    """Puts the policies of a document into its entry; returns what is set, by key."""
    if not isinstance(found, dict):
        _fail(where, "policies", found, "a mapping of keys to values; {} is none at all")
    for key, value in found.items():
        field = f"policies.{key}"
        try:
            known = field_of(str(key), "apply")
            if value is None:
                forget(entry, key, "apply", clear=True)
        except UsageError as error:
            _fail(where, field, value, f"what kdir set takes: {error.message}")
        closes = known.mask == "directory.closed" and kind != "topic"
        if not (closes or known.mask.startswith("policies.")):
            _fail(where, "policies", key, f"a policy of a {kind}")
        if value is None:
            continue
        if not isinstance(value, str):
            _fail(where, field, value, "a text")
        _assigned(where, field, entry, key, value)
        if known.name == "manage" and entry.policies.manage[known.key]:
            _fail(where, field, value, f"false: kdir arm {known.key} arms, by a plan that was read")
    return own_fields(entry)


def _link(where: str, entry: entry_pb2.Entry, content: Mapping[str, Any]) -> None:
    targets = content.get("targets")
    if not isinstance(targets, list) or not targets:
        _fail(where, "targets", targets, "a list of paths")
    for one in targets:
        text = one if isinstance(one, str) else repr(one)
        entry.link.targets.append(str(_path(where, "targets", text)))
    for name, default in _LINK_DEFAULTS.items():
        value = _text(where, content, name) if name in content else default
        _assigned(where, name, entry, name, value)


def _grants(where: str, found: Any) -> Grants:
    if not isinstance(found, list):
        _fail(where, "grants", found, "a list; [] is none at all")
    made: list[access_pb2.Grant] = []
    for number, one in enumerate(found, start=1):
        inside = f"grants: number {number}: "
        if not isinstance(one, dict):
            _fail(where, inside.rstrip(": "), one, "a mapping with principal and operations")
        _check_names(where, inside, one, _ABOUT_GRANTS)
        operations = one.get("operations")
        if isinstance(operations, str):
            operations = operations.split(",")
        if not isinstance(operations, list) or not all(isinstance(o, str) for o in operations):
            _fail(where, f"{inside}operations", operations, "a list such as [read, describe]")
        resources = [name for name in _RESOURCES if name in one]
        if len(resources) > 1:
            _fail(where, inside.rstrip(": "), " and ".join(resources), "one of them")
        resource, name = (resources or ["topic"])[0], ""
        if resource == "cluster" and one["cluster"] != "true":
            _fail(where, f"{inside}cluster", one["cluster"], "true, or no such field")
        if resource in {"group", "transactional-id"}:
            name = _text(where, one, resource)
        if one.get("deny", "true") != "true":
            _fail(where, f"{inside}deny", one["deny"], "true, or no such field")
        try:
            made += grants_of(
                _text(where, one, "principal"),
                operations,
                deny="deny" in one,
                host=_host(where, f"{inside}host", one["host"]) if "host" in one else "",
                resource=resource,
                name=name,
            )
        except KdirError as error:
            raise UsageError(f"{where}: {inside}{error.message}", verb="apply") from None
    return grants_by_text(made)


def _host(where: str, field: str, found: Any) -> str:
    """Returns an address as servers store it, so that two spellings of one do not differ."""
    if found == "*":
        return "*"
    try:
        address = ip_address(str(found).partition("%")[0])
    except ValueError:
        _fail(where, field, found, "an IP address, or '*' for every host")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def grants_by_text(grants: Iterable[access_pb2.Grant]) -> Grants:
    """Returns grants by their text."""
    return {grant_text(one): one for one in grants}


def own_fields(entry: entry_pb2.Entry) -> dict[str, str | None]:
    """Returns an entry's own settings by key, without armed aspects; None = cleared."""
    own = {
        key: value
        for key, value in policy_fields(entry.policies)
        if not (key.startswith("manage.") and value == "true")
    }
    if entry.HasField("directory") and entry.directory.closed:
        own["closed"] = "true"
    return own


def as_document(
    entry: entry_pb2.Entry, grants: Grants | None, *, mounted: str = "", physical: bool
) -> dict[str, Any]:
    """Returns the document from which ``apply`` makes the same entry; ``mounted`` is the name of
    the mounted cluster if the entry is its root directory.
    """
    kind = "mount" if mounted else entry.WhichOneof("kind") or ""
    made: dict[str, Any] = {"path": entry.path, "kind": kind}
    match kind:
        case "topic":
            topic = entry.topic
            made |= {"physical_name": topic.physical_name} if physical else {}
            made |= {"partitions": topic.partitions} if topic.partitions else {}
            rf = topic.replication_factor
            made |= {"replication_factor": rf} if rf else {}
        case "link":
            made["targets"] = list(entry.link.targets)
            shown = plain(entry.link)
            for name, default in _LINK_DEFAULTS.items():
                value = str(shown.get(name, default)).rpartition("_")[2].lower()
                made |= {name: _scalar(value)} if value != default else {}
            return made
        case "mount":
            made["cluster"] = mounted
        case _:
            pass
    made["policies"] = {key: _scalar(value) for key, value in sorted(own_fields(entry).items())}
    if grants is not None:
        made["grants"] = _grants_as_values(grants.values())
    return made


def _scalar(text: str | None) -> str | int | bool | None:
    """Returns a value that YAML prints without quotes where it is read as the same text."""
    if text in {"true", "false"}:
        return text == "true"
    return int(text) if text is not None and _WHOLE.fullmatch(text) else text


def _grants_as_values(grants: Iterable[access_pb2.Grant]) -> list[dict[str, Any]]:
    """Returns grants as in documents: one value for those that differ only in the operation."""
    from kdir.v1 import access_pb2

    made: dict[tuple[object, ...], dict[str, Any]] = {}
    for one in grants:
        key = (one.principal, one.permission, one.host, one.resource_type, one.resource_name)
        if key not in made:
            value: dict[str, Any] = {"principal": one.principal, "operations": []}
            value |= {"deny": True} if one.permission == access_pb2.PERMISSION_DENY else {}
            value |= {"host": one.host} if one.host != "*" else {}
            kind = _part(access_pb2.ResourceType.Name(one.resource_type), "RESOURCE_TYPE_")
            value |= {kind: one.resource_name or True} if kind != "topic" else {}
            made[key] = value
        operation = _part(access_pb2.Operation.Name(one.operation), "OPERATION_")
        made[key]["operations"].append(operation)
    return list(made.values())


def _part(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower().replace("_", "-")
