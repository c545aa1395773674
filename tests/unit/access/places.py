"""Grants, places and whole accesses written short."""

from __future__ import annotations

from directory.access.authorizer import Authorizer, InheritedGrantLevel
from directory.access.compiled_grants import AccessMode, AccessQuestion, CompiledGrants
from directory.access.grant_tree import EntryPlace, GrantedEntry, GrantTree
from directory.access.grants import Grant, Operation, Permission, ResourceType
from resolver.path import Path

LA = Path(("la",))
READ = AccessQuestion.for_operation(Operation.READ)
WRITE = AccessQuestion.for_operation(Operation.WRITE)
DESCRIBE = AccessQuestion.for_operation(Operation.DESCRIBE)


def at(text: str) -> EntryPlace:
    """Returns a place below the mount: ``a/b/`` is a directory, ``a/b`` a topic, ``/`` the root."""
    names = tuple(name for name in text.split("/") if name)
    return EntryPlace(names, bool(names) and not text.endswith("/"))


def grant(text: str) -> Grant:
    """Returns the grant of ``allow User:a read``, optionally followed by ``from HOST`` and ``KIND
    NAME``.
    """
    permission, principal, operation, *rest = text.split()
    host = "*"
    if rest[:1] == ["from"]:
        _, host, *rest = rest
    kind, *names = rest or ["topic"]
    return Grant.from_fields(
        principal,
        host,
        Operation.parse(operation),
        Permission.parse(permission),
        ResourceType.parse(kind),
        *names,
    )


def tree(entries: dict[str, list[str]], closed: tuple[str, ...] = ()) -> GrantTree:
    """Grants by place; directories that are closed beside them."""
    return GrantTree.build(
        GrantedEntry(
            at(place), CompiledGrants.compile(map(grant, entries.get(place, ()))), place in closed
        )
        for place in {*entries, *closed}
    )


def access(
    entries: dict[str, list[str]],
    *,
    closed: tuple[str, ...] = (),
    inherited: dict[str, list[str]] | None = None,
    mode: AccessMode = AccessMode.ENFORCE,
    supers: frozenset[str] = frozenset(),
    max_age: float | None = None,
) -> Authorizer:
    """Returns the access of a cluster mounted at ``/la``."""
    return Authorizer(
        mount=LA,
        tree=tree(entries, closed),
        inherited=tuple(
            InheritedGrantLevel(Path.parse(path), CompiledGrants.compile(map(grant, grants)))
            for path, grants in (inherited or {}).items()
        ),
        mode=mode,
        super_users=supers,
        grants_max_age_seconds=max_age,
    )
