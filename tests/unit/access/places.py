"""Grants, places and whole accesses written short."""

from __future__ import annotations

from directory.access.authorizer import Access, Level
from directory.access.compiled_grants import Question, Rules
from directory.access.decision import Mode
from directory.access.grant import Grant, Operation, Permission, ResourceKind
from directory.access.grant_tree import Granted, GrantTree, Place
from resolver.path import Path

LA = Path(("la",))
READ = Question.of(Operation.READ)
WRITE = Question.of(Operation.WRITE)
DESCRIBE = Question.of(Operation.DESCRIBE)


def at(text: str) -> Place:
    """A place below the mount: ``a/b/`` is a directory, ``a/b`` a topic, ``/`` the root."""
    names = tuple(name for name in text.split("/") if name)
    return Place(names, bool(names) and not text.endswith("/"))


def grant(text: str) -> Grant:
    """``allow User:a read``, and if wanted ``from HOST`` and ``KIND NAME`` behind it."""
    permission, principal, operation, *rest = text.split()
    host = "*"
    if rest[:1] == ["from"]:
        _, host, *rest = rest
    kind, *names = rest or ["topic"]
    return Grant.of(
        principal,
        host,
        Operation.parse(operation),
        Permission.parse(permission),
        ResourceKind.parse(kind),
        *names,
    )


def tree(entries: dict[str, list[str]], closed: tuple[str, ...] = ()) -> GrantTree:
    """Grants by place; directories that are closed beside them."""
    return GrantTree.build(
        Granted(at(place), Rules.of(map(grant, entries.get(place, ()))), place in closed)
        for place in {*entries, *closed}
    )


def access(
    entries: dict[str, list[str]],
    *,
    closed: tuple[str, ...] = (),
    inherited: dict[str, list[str]] | None = None,
    mode: Mode = Mode.ENFORCE,
    supers: frozenset[str] = frozenset(),
    max_age: float | None = None,
) -> Access:
    """The access of a cluster mounted at ``/la``."""
    return Access(
        mount=LA,
        tree=tree(entries, closed),
        inherited=tuple(
            Level(Path.parse(path), Rules.of(map(grant, grants)))
            for path, grants in (inherited or {}).items()
        ),
        mode=mode,
        super_users=supers,
        grants_max_age_seconds=max_age,
    )
