"""Files of the verbs; a file is imported only if one of its verbs is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from resolver.cli.parser import Verb

__all__ = ["FAMILIES", "GROUPS", "every_verb", "load_verb", "nearest_verbs"]

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Read": ("ls", "tree", "stat", "resolve", "which", "trace", "effective", "grants", "check",
             "watch", "history", "audit", "mounts", "find", "export", "ui"),
    "Write": ("mkdir", "create", "rm", "mv", "ln", "mount", "umount", "set", "unset", "grow",
              "grant", "revoke", "arm", "adopt", "ack", "apply"),
    "Data": ("produce", "consume"),
    "Operate": ("server", "index", "doctor", "verify", "backup", "restore", "migrate", "features",
                "log", "parent", "context", "completion"),
}  # fmt: skip
"""Verbs by purpose, in the order in which help lists them."""

FAMILIES: Final[Mapping[str, tuple[str, ...]]] = {
    "ls": ("ls",),
    "tree": ("tree",),
    "stat": ("stat",),
    "resolve": ("resolve", "which", "trace"),
    "watch": ("watch", "history"),
    "audit": ("audit",),
    "find": ("find", "index"),
    "create": ("mkdir", "create", "rm", "mv", "ln"),
    "mount": ("mounts", "mount", "umount"),
    "set": ("set", "unset", "effective"),
    "grow": ("grow",),
    "arm": ("arm",),
    "grant": ("grant", "revoke", "grants", "check"),
    "adopt": ("adopt", "ack"),
    "export": ("export",),
    "ui": ("ui",),
    "apply": ("apply",),
    "produce": ("produce", "consume"),
    "server": ("server",),
    "doctor": ("doctor",),
    "backup": ("backup", "restore", "migrate"),
    "verify": ("verify",),
    "features": ("features",),
    "log": ("log",),
    "parent": ("parent",),
    "context": ("context", "completion"),
}
"""Verbs of each file of this package; the file is named as one of them, and declares them in
``VERBS``.
"""

_FAMILY_OF: Final = {verb: family for family, verbs in FAMILIES.items() for verb in verbs}


def load_verb(name: str) -> Verb | None:
    """Returns the verb of that name; None = there is none."""
    family = _FAMILY_OF.get(name)
    if family is None:
        return None
    verbs: tuple[Verb, ...] = import_module(f"resolver.cli.{family}").VERBS
    return next(verb for verb in verbs if verb.name == name)


def every_verb() -> Iterator[Verb]:
    """Yields all verbs, in the order of help. This is fast, since verbs' files import slow modules
    only when they run.
    """
    for names in GROUPS.values():
        for name in names:
            verb = load_verb(name)
            if verb is not None:
                yield verb


def nearest_verbs(name: str) -> list[str]:
    """Returns verbs similar to ``name``, or of the same meaning; the best first, at most three."""
    import difflib

    others = {"list": "ls", "dir": "ls", "delete": "rm", "remove": "rm", "move": "mv",
              "rename": "mv", "link": "ln", "unmount": "umount", "get": "stat", "info": "stat",
              "locate": "which", "search": "find", "status": "doctor", "log": "history",
              "describe": "stat", "serve": "server", "ctx": "context", "policies": "effective",
              "allow": "grant", "deny": "grant", "acl": "grants"}  # fmt: skip
    if name in others:
        return [others[name]]
    return difflib.get_close_matches(name, _FAMILY_OF, n=3, cutoff=0.5)
