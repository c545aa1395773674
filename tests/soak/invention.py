"""Invents operations and questions: random, and near to what stands, so that they collide."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.soak.doors import Read
from tests.soak.model import GrantLine, Op, Tree
from tests.soak.plots import Plot

__all__ = ["invent", "invent_read", "invent_way"]

_NAMES = ("a", "b", "c")
_OPERATIONS = ("READ", "WRITE", "DESCRIBE", "ALTER", "ALL")
_FIELDS = ("owner", "contact", "description", "tags.x", "tags.y", "topic_config.retention.ms")
_VALUES = ("x", "y", "z")


def invent(source: random.Random, plot: Plot, others: Sequence[Plot] = ()) -> Op:
    """Returns the next operation on a plot. The first makes the plot itself, which always stays.

    ``others``: the same worker's, to which links may lead.
    """
    tree = plot.tree
    if not tree:
        return Op(verb="mkdir", path=plot.path)
    verb = source.choices(
        ["mkdir", "rm", "mv", "set", "grant", "revoke", "ln", "read_only", "create", "quota"],
        [7, 3, 3, 7, 4, 4, 2, 1, *((5, 1) if plot.cluster.broker is not None else (0, 0))],
    )[0]
    match verb:
        case "mkdir":
            path = _some_path(source, plot, new=0.85)
            return Op(verb=verb, path=path, parents=source.random() < 0.3)
        case "create":
            path = _some_path(source, plot, new=0.9)
            return Op(verb=verb, path=path, kind="topic")
        case "quota":
            path = _standing_directory(source, plot)
            value = source.choice(["0", "1", "2", None, None])
            return Op(verb="set", path=path, fields=(("max_topics", value),))
        case "ln":
            path = _some_path(source, plot, new=0.9)
            return _link(source, path, [one for one in others if one is not plot])
        case "rm":
            path, kind = _standing(source, plot)
            return Op(verb=verb, path=path, kind=kind, recursive=source.random() < 0.7)
        case "mv":
            path, kind = _standing(source, plot)
            return Op(verb=verb, path=path, kind=kind, new_path=_some_path(source, plot, new=0.9))
        case "set":
            return _set(source, plot)
        case "read_only":
            path = _standing_directory(source, plot)
            value = source.choice(["true", None, None, "false"])
            return Op(verb="set", path=path, fields=(("read_only", value),))
        case _:
            path, kind = _standing(source, plot)
            return Op(verb=verb, path=path, kind=kind, grants=_grants(source, tree, path))


def _link(source: random.Random, path: str, others: Sequence[Plot]) -> Op:
    """A link to directories of other plots."""
    standing = sorted(
        {key[0] for plot in others for key, node in plot.tree.items() if node.kind == "directory"}
    )
    count = min(len(standing), source.choice([1, 1, 2]))
    targets = tuple(source.sample(standing, count)) or (f"{path}-elsewhere/t",)
    mode = source.choice(["", "fallback", "union"]) if count > 1 else ""
    return Op(verb="ln", path=path, kind="link", targets=targets, mode=mode)


def invent_way(source: random.Random, plots: Sequence[Plot]) -> str:
    """Returns a path through one of the links, or "" where there is none."""
    links = sorted(
        (key[0], node.targets)
        for plot in plots
        for key, node in plot.tree.items()
        if node.kind == "link"
    )
    if not links:
        return ""
    path, targets = source.choice(links)
    target = source.choice(targets)
    below = sorted(
        {key[0][len(target) :] for plot in plots for key in plot.tree if key[0].startswith(target)}
    )
    rest = source.choice(below) if below and source.random() < 0.8 else f"/{source.choice(_NAMES)}"
    return path + rest


def _set(source: random.Random, plot: Plot) -> Op:
    path, kind = _standing(source, plot)
    fields: dict[str, str | None] = {}
    for _ in range(source.choice([1, 1, 2])):
        name = source.choice((*_FIELDS, "closed") if kind == "directory" else _FIELDS)
        if name == "closed":
            fields[name] = source.choice(["true", "false", "false"])
        elif name.startswith("topic_config"):
            fields[name] = source.choice(["60000", "120000", None])
        else:
            fields[name] = source.choice((*_VALUES, None))
    return Op(verb="set", path=path, kind=kind, fields=tuple(fields.items()))


def _grants(source: random.Random, tree: Tree, path: str) -> tuple[GrantLine, ...]:
    """Returns some grants; often such as stand there."""
    standing = tree.get((path, "container"))
    if standing is not None and standing.grants and source.random() < 0.5:
        return (source.choice(sorted(standing.grants)),)
    return (
        (
            f"User:{source.choice('pq')}",
            source.choice(_OPERATIONS),
            source.choice(["ALLOW", "ALLOW", "DENY"]),
        ),
    )


def _standing_directory(source: random.Random, plot: Plot) -> str:
    """Of a directory in the plot, if there is one."""
    own = sorted(
        key[0]
        for key, node in plot.tree.items()
        if key[0] != plot.path and node.kind == "directory"
    )
    if own:
        return source.choice(own)
    path = _some_path(source, plot, new=1)
    return f"{path}-none" if _is_link(plot, path) else path


def _standing(source: random.Random, plot: Plot) -> tuple[str, str]:
    """A path and its kind: mostly of an entry that stands, never of the plot itself."""
    own = sorted(
        (key[0], node.kind)
        for key, node in plot.tree.items()
        if key[0] != plot.path and node.kind != "link"
    )
    if own and source.random() < 0.85:
        return source.choice(own)
    path = _some_path(source, plot, new=1)
    return f"{path}-none" if _is_link(plot, path) else path, "directory"


def _is_link(plot: Plot, path: str) -> bool:
    node = plot.tree.get((path, "container"))
    return node is not None and node.kind == "link"


def _some_path(source: random.Random, plot: Plot, new: float) -> str:
    """A path in the plot, below directories as a rule; none that runs through a link."""
    directories = sorted(key[0] for key, node in plot.tree.items() if node.kind == "directory")
    above = source.choice(directories)
    if above.count("/") - plot.path.count("/") >= 3:
        above = plot.path
    path = f"{above}/{source.choice(_NAMES)}"
    link = plot.tree.get((path, "container"))
    if source.random() < 0.15 and (link is None or link.kind != "link"):
        path += f"/{source.choice(_NAMES)}"
    return path if source.random() < new else source.choice(directories)


def invent_read(source: random.Random, plot: Plot) -> Read:
    """Returns the next question about a plot."""
    what = source.choices(
        ["get", "list", "resolve", "grants", "check", "effective"], [3, 3, 3, 3, 2, 2]
    )[0]
    if what == "list":
        directories = [key[0] for key, node in plot.tree.items() if node.kind == "directory"]
        return Read(what, source.choice(sorted(directories) or [plot.path]))
    path, kind = _standing(source, plot) if plot.tree else (plot.path, "directory")
    if source.random() < 0.2:
        path = plot.path
        kind = "directory"
    if _is_link(plot, path):
        path, kind = plot.path, "directory"
    if what == "effective" and (path, "topic") in plot.tree:
        path = plot.path
    if what == "check":
        operation = source.choice(_OPERATIONS[:-1])
        return Read(what, path, "directory", f"User:{source.choice('pq')}", operation)
    return Read(what, path, kind)
