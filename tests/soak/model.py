"""The naive model: what a subtree must hold after each operation, in dicts; no kdir in it.

Each tree is one worker's own, so that the order of its changes is known. Rules are written as the
documentation has them, one loop each, with no thought for speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

__all__ = [
    "ABSENT",
    "Applied",
    "GrantLine",
    "Key",
    "Node",
    "Op",
    "Tree",
    "apply",
    "decide",
    "effective_view",
    "entry_view",
    "follow",
    "grants_view",
    "list_view",
    "names_at",
    "resolve_view",
]

Key = tuple[str, str]
"""A path and its slot, ``container`` or ``topic``: one of each may stand under a name."""
GrantLine = tuple[str, str, str]
"""Principal, operation and permission, such as ``("User:a", "READ", "ALLOW")``."""
ABSENT: Final = "ABSENT"
_INHERITED: Final = (
    "owner",
    "contact",
    "description",
    "tags.",
    "read_only",
    "max_topics",
    "topic_",
)
_IMPLIES: Final = {
    "READ": {"DESCRIBE"},
    "WRITE": {"DESCRIBE"},
    "DELETE": {"DESCRIBE"},
    "ALTER": {"DESCRIBE"},
    "ALTER_CONFIGS": {"DESCRIBE_CONFIGS"},
}


@dataclass(frozen=True, slots=True)
class Node:
    """An entry of the model."""

    kind: str
    fields: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    grants: frozenset[GrantLine] = frozenset()
    targets: tuple[str, ...] = ()
    mode: str = ""
    """Of a link: empty, ``fallback`` (on absent, too) or ``union``."""


Tree = Mapping[Key, Node]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """A change that a worker asks for."""

    verb: str
    path: str
    kind: str = "directory"
    new_path: str = ""
    parents: bool = False
    recursive: bool = False
    fields: tuple[tuple[str, str | None], ...] = ()
    grants: tuple[GrantLine, ...] = ()
    targets: tuple[str, ...] = ()
    mode: str = ""

    def shown(self) -> dict[str, object]:
        """Returns what is not its default, for the journal."""
        return {
            name: value
            for name in self.__slots__
            if (value := getattr(self, name)) not in ("", False, ())
        }


@dataclass(frozen=True, slots=True)
class Applied:
    """Result of an operation: the tree afterwards, or every reason for which it may be refused (one
    of them must be named); ``answer`` is what an answer must contain besides.
    """

    tree: Tree
    reasons: frozenset[str] = frozenset()
    answer: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


def slot_of(kind: str) -> str:
    """Returns the slot of an entry of a kind."""
    return "topic" if kind == "topic" else "container"


def parent_of(path: str) -> str:
    """Returns the path above."""
    return path.rsplit("/", 1)[0]


def paths_above(path: str) -> list[str]:
    """Returns the path and those above it, nearest first, without the root."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 1, -1)]


def is_below(path: str, above: str) -> bool:
    """True if ``path`` is ``above`` or lies below it."""
    return path == above or path.startswith(above + "/")


def below(tree: Tree, path: str) -> Iterator[Key]:
    """Returns the keys of all that lies below a directory."""
    return (key for key in tree if key[0].startswith(path + "/"))


# -- operations ------------------------------------------------------------------------------


def apply(tree: Tree, op: Op, top: str) -> Applied:
    """Returns what an operation comes to. ``top`` is the path above the tree, which
    always stands.
    """
    rule = {
        "mkdir": _mkdir,
        "create": _create,
        "ln": _create,
        "rm": _rm,
        "mv": _mv,
        "set": _set,
        "grant": _grant,
        "revoke": _grant,
    }[op.verb]
    return rule(tree, op, top)


def _missing(tree: Tree, path: str, top: str) -> bool:
    """True if no directory stands at the path."""
    if path == top:
        return False
    node = tree.get((path, "container"))
    return node is None or node.kind != "directory"


def _has_link_above(tree: Tree, path: str) -> bool:
    """True if the way to the path runs through a link."""
    return any(
        (node := tree.get((above, "container"))) is not None and node.kind == "link"
        for above in paths_above(path)[1:]
    )


def _read_only(tree: Tree, path: str) -> bool:
    """True if what lies in the directory may not be changed: the nearest that says counts."""
    for above in paths_above(path):
        node = tree.get((above, "container"))
        if node is not None and "read_only" in node.fields:
            return node.fields["read_only"] == "true"
    return False


def _entry_read_only(tree: Tree, key: Key) -> bool:
    own = tree[key].fields.get("read_only")
    return own == "true" if own is not None else _read_only(tree, parent_of(key[0]))


def _mkdir(tree: Tree, op: Op, top: str) -> Applied:
    standing = tree.get((op.path, "container"))
    if standing is not None and not _has_link_above(tree, op.path):
        if op.parents and standing.kind == "directory":
            return Applied(tree)
        return Applied(tree, frozenset({"ALREADY_EXISTS"}))
    gone = [one for one in paths_above(parent_of(op.path)) if is_below(one, top)]
    missing = [one for one in gone if _missing(tree, one, top)]
    if any((one, "container") in tree for one in missing):  # a link on the way
        return Applied(tree, frozenset({"INVALID_NAMESPACE"}))
    if missing and not op.parents:
        return Applied(tree, frozenset({"INVALID_NAMESPACE"}))
    if _read_only(tree, parent_of(op.path)):
        return Applied(tree, frozenset({"READ_ONLY"}))
    made = dict(tree)
    for path in [op.path, *missing]:
        made[path, "container"] = Node("directory")
    return Applied(made)


def _create(tree: Tree, op: Op, top: str) -> Applied:
    """A topic or a link."""
    if _missing(tree, parent_of(op.path), top):
        return Applied(tree, frozenset({"INVALID_NAMESPACE"}))
    key = (op.path, slot_of(op.kind))
    reasons = set()
    if key in tree:
        reasons.add("ALREADY_EXISTS")
    if _read_only(tree, parent_of(op.path)):
        reasons.add("READ_ONLY")
    if op.kind == "topic" and _quota_left(tree, parent_of(op.path)) < 1:
        reasons.add("QUOTA_EXCEEDED")
    if reasons:
        return Applied(tree, frozenset(reasons))
    return Applied({**tree, key: Node(op.kind, targets=op.targets, mode=op.mode)})


def _quota_left(tree: Tree, path: str, leaving: str = "") -> float:
    """Returns how many topics more may come below the directory; those at and below
    ``leaving`` go.
    """
    left = float("inf")
    for above in paths_above(path):
        node = tree.get((above, "container"))
        if node is None or "max_topics" not in node.fields:
            continue
        if leaving and is_below(leaving, above):
            continue  # they are counted there already, and stay
        held = sum(1 for key in below(tree, above) if key[1] == "topic")
        left = min(left, int(node.fields["max_topics"]) - held)
    return left


def _found(tree: Tree, op: Op) -> Key | frozenset[str]:
    """Returns the key of the entry that an operation is about, or why there is none."""
    key = (op.path, slot_of(op.kind))
    if _has_link_above(tree, op.path):
        return frozenset({"INVALID_NAMESPACE"})
    if key not in tree or tree[key].kind != op.kind:
        return frozenset({"ABSENT"})
    return key


def _rm(tree: Tree, op: Op, top: str) -> Applied:
    key = _found(tree, op)
    if not isinstance(key, tuple):
        return Applied(tree, key)
    going = set(below(tree, op.path)) if op.kind == "directory" else set()
    reasons = set()
    if going and not op.recursive:
        reasons.add("NOT_EMPTY")
    if _entry_read_only(tree, key) or any(
        tree[one].fields.get("read_only") == "true" for one in going
    ):
        reasons.add("READ_ONLY")
    if reasons:
        return Applied(tree, frozenset(reasons))
    going.add(key)
    topics = sum(1 for one in going if one[1] == "topic")
    directories = sum(1 for one in going if tree[one].kind == "directory")
    return Applied(
        {one: node for one, node in tree.items() if one not in going},
        answer={"topic_count": topics, "directory_count": directories},
    )


def _mv(tree: Tree, op: Op, top: str) -> Applied:
    key = _found(tree, op)
    if not isinstance(key, tuple):
        return Applied(tree, key)
    reasons = set()
    if op.new_path == op.path or (op.kind != "topic" and is_below(op.new_path, op.path)):
        reasons.add("INVALID_MOVE")
    elif not is_below(op.new_path, top):
        reasons.add("CROSS_MOUNT")
    elif _missing(tree, parent_of(op.new_path), top):
        reasons.add("INVALID_NAMESPACE")
    elif (op.new_path, key[1]) in tree:
        reasons.add("ALREADY_EXISTS")
    if _entry_read_only(tree, key) or _read_only(tree, parent_of(op.new_path)):
        reasons.add("READ_ONLY")
    if op.kind == "link" and any(is_below(at, op.new_path) for at in tree[key].targets):
        reasons.add("INVALID_MOVE")
    going = {key, *(below(tree, op.path) if op.kind == "directory" else ())}
    topics = sum(1 for one in going if one[1] == "topic")
    if topics and _quota_left(tree, parent_of(op.new_path), parent_of(op.path)) < topics:
        reasons.add("QUOTA_EXCEEDED")
    if reasons:
        return Applied(tree, frozenset(reasons))
    moved = {
        ((op.new_path + one[0][len(op.path) :], one[1]) if one in going else one): node
        for one, node in tree.items()
    }
    return Applied(moved)


def _set(tree: Tree, op: Op, top: str) -> Applied:
    key = _found(tree, op)
    if not isinstance(key, tuple):
        return Applied(tree, key)
    fields = dict(tree[key].fields)
    for name, value in op.fields:
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = value
    if fields.get("closed") == "false":
        del fields["closed"]
    answer = {"fields": fields}
    if fields == tree[key].fields:
        return Applied(tree, answer=answer)
    if {name for name, _ in op.fields} - {"read_only"} and _entry_read_only(tree, key):
        return Applied(tree, frozenset({"READ_ONLY"}))
    return Applied({**tree, key: replace(tree[key], fields=fields)}, answer=answer)


def _grant(tree: Tree, op: Op, top: str) -> Applied:
    """Grants or revoke."""
    key = _found(tree, op)
    if not isinstance(key, tuple):
        return Applied(tree, key)
    had, asked = tree[key].grants, frozenset(op.grants)
    grants = had | asked if op.verb == "grant" else had - asked
    answer = {"grants": grants, "changed": grants ^ had}
    return Applied({**tree, key: replace(tree[key], grants=grants)}, answer=answer)


# -- what a read must find ---------------------------------------------------------------------


def entry_view(tree: Tree, path: str, kind: str) -> object:
    """Returns an entry itself: its kind, own fields and targets."""
    node = tree.get((path, slot_of(kind)))
    if node is None or node.kind != kind:
        return ABSENT
    return (path, node.kind, frozenset(node.fields.items()), node.targets, node.mode)


def list_view(tree: Tree, path: str) -> object:
    """Returns all that lies below a directory."""
    node = tree.get((path, "container"))
    if node is None or node.kind != "directory":
        return ABSENT
    return frozenset(entry_view(tree, key[0], tree[key].kind) for key in below(tree, path))


def resolve_view(tree: Tree, path: str) -> object:
    """Returns what a path is that runs through no link: its kind, and whether a container stands
    too.
    """
    topic, container = tree.get((path, "topic")), tree.get((path, "container"))
    if topic is not None:
        return ("topic", container is not None)
    return ABSENT if container is None else (container.kind, False)


def follow(trees: Mapping[str, Tree | None], path: str, hops: int = 0) -> object:
    """Returns where a path leads that may run through links: its canonical path and kind; None:
    that cannot be said. ``trees``: by the path at which each begins, None where it is not known
    what it holds. Nothing stands outside of them.
    """
    top = next((one for one in trees if is_below(path, one)), None)
    if top is None:
        return ABSENT
    tree = trees[top]
    if tree is None:
        return None
    for here in reversed([one for one in paths_above(path) if is_below(one, top)]):
        if here == path and (path, "topic") in tree:
            return (path, "topic")
        node = tree.get((here, "container"))
        if node is None:
            return ABSENT
        if node.kind == "link":
            if hops > 6:
                return None
            rest = path[len(here) :]
            found = [follow(trees, target + rest, hops + 1) for target in node.targets]
            if not node.mode:
                return found[0]
            return next((one for one in found if one != ABSENT), ABSENT)  # also None
        if here == path:
            return (path, node.kind)
    raise AssertionError(path)


def names_at(trees: Mapping[str, Tree | None], path: str, hops: int = 0) -> object:
    """Returns the names in the directory to which a path leads, of a union those of all its
    targets; None: it is no directory, or leads nowhere.
    """
    top = next((one for one in trees if is_below(path, one)), None)
    tree = trees.get(top or "", {})
    if tree is None:
        return None
    for here in reversed([one for one in paths_above(path) if top and is_below(one, top)]):
        node = tree.get((here, "container"))
        if node is None or hops > 6:
            return None
        if node.kind != "link":
            continue
        rest = path[len(here) :]
        found = [names_at(trees, target + rest, hops + 1) for target in node.targets]
        if node.mode != "union":
            return found[0] if len(found) == 1 or not node.mode else None
        sets = [one for one in found if isinstance(one, frozenset)]
        return frozenset().union(*sets) if len(sets) == len(found) else None
    if (path, "container") not in tree or (path, "topic") in tree:
        return None
    return frozenset(key[0].rsplit("/", 1)[1] for key in tree if parent_of(key[0]) == path)


def grants_view(tree: Tree, path: str, kind: str) -> object:
    """Returns the grants of an entry itself."""
    node = tree.get((path, slot_of(kind)))
    return ABSENT if node is None or node.kind != kind else node.grants


def effective_view(tree: Tree, path: str) -> object:
    """Returns the fields that hold in a directory and are set at or above it in the tree, with
    where.
    """
    node = tree.get((path, "container"))
    if node is None or node.kind != "directory":
        return ABSENT
    found: dict[str, tuple[str, str]] = {}
    for above in paths_above(path):
        level = tree.get((above, "container"))
        for name, value in level.fields.items() if level is not None else ():
            if name.startswith(_INHERITED):
                found.setdefault(name, (value, above))
    return frozenset((name, *value) for name, value in found.items())


def decide(tree: Tree, path: str, principal: str, operation: str, *, enforce: bool) -> object:
    """True if a principal may do something with the container at a path: a deny anywhere on it
    decides, else an allow that no closed directory shuts out, else the mode.
    """
    allowed = passing = shut = never = False
    for above in reversed(paths_above(path)):
        node = tree.get((above, "container"))
        if node is None:
            continue
        own = [line for line in node.grants if line[0] in (principal, "User:*")]
        if any(line[2] == "DENY" and line[1] in (operation, "ALL") for line in own):
            return False
        can = {line[1] for line in own if line[2] == "ALLOW"}
        can |= {other for one in can for other in _IMPLIES.get(one, ())}
        if any(line[2] == "DENY" and line[1] in ("DESCRIBE", "ALL") for line in own):
            never = True
        passing = passing or bool(can & {"DESCRIBE", "ALL"})
        if can & {operation, "ALL"} and not shut:
            allowed = True
        if node.fields.get("closed") == "true" and (never or not passing):
            shut = True
    return allowed or (not enforce and not shut)
