"""Mapping rules from a certificate's names to a principal; refuses patterns that could backtrack.

The first rule that matches decides, as in Kafka's ``ssl.principal.mapping.rules``; but rules match
parts of names and are not regular expressions. A rule is ``KIND:PATTERN -> PRINCIPAL`` or
``DEFAULT``::

    URI:spiffe://prod/ns/*/sa/* -> User:$2
    DNS:*.clients.example.com   -> User:$1
    CN:svc-*                    -> User:$1
    DEFAULT

KIND is ``URI``, ``DNS`` or ``EMAIL`` of the subject alternative name, or ``CN`` of the subject. The
pattern is split at ``/`` (URI), ``.`` (DNS), ``@`` (EMAIL) or not at all (CN); a name must have as
many parts, and each part of the pattern may have one ``*``, which matches one character or more.
So there is at most one match, and it is found in one pass. ``$1``, ``$2`` … are the texts that the
stars matched. ``DEFAULT`` takes the first URI, else the first DNS name, else the common name, as
``User:…``; it is the only rule if none are given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from directory.access.principals import check_principal
from directory.server.toml_table import ConfigError
from resolver.errors import InvalidArgument
from resolver.peer_certificates import CLUSTER_URI

__all__ = ["DEFAULT", "CertificateNames", "PrincipalRule", "parse_rules", "principal_of"]

_CUTS: Final = {"URI": "/", "DNS": ".", "EMAIL": "@", "CN": ""}


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """Subject and alternative names of a certificate."""

    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()
    common_name: str = ""
    ends_at: float = inf
    """Time at which the certificate expires, in Unix seconds."""

    def names_of_kind(self, kind: str) -> tuple[str, ...]:
        """Returns the names of one kind."""
        match kind:
            case "URI":
                return self.uris
            case "DNS":
                return self.dns
            case "EMAIL":
                return self.emails
            case _:
                return (self.common_name,) if self.common_name else ()

    @property
    def cluster_ids(self) -> tuple[str, ...]:
        """Ids in the URIs ``kdir://cluster/ID``; if there are any, it is a server's certificate."""
        return tuple(
            uri.removeprefix(CLUSTER_URI) for uri in self.uris if uri.startswith(CLUSTER_URI)
        )


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """One mapping rule."""

    kind: str
    """``URI``, ``DNS``, ``EMAIL``, ``CN``; empty = ``DEFAULT``."""
    parts: tuple[str, ...] = ()
    principal: str = ""

    @classmethod
    def parse(cls, text: str) -> PrincipalRule:
        """Parses a rule.

        Raises:
            ConfigError: malformed; names the expected form.
        """
        if text.strip() == "DEFAULT":
            return DEFAULT
        left, arrow, principal = (part.strip() for part in text.rpartition("->"))
        kind, colon, pattern = left.partition(":")
        if not arrow or not colon or kind not in _CUTS or not pattern:
            raise ConfigError(
                f"auth.principal_mapping_rules: found {text!r}; expected DEFAULT, or a rule "
                f"such as 'DNS:*.clients.example.com -> User:$1' (URI, DNS, EMAIL or CN)"
            )
        parts = _cut(kind, pattern)
        if any(part.count("*") > 1 for part in parts):
            raise ConfigError(
                f"auth.principal_mapping_rules: {text!r}: expected one * in each part between "
                f"{_CUTS[kind] or 'the ends'}"
            )
        stars = sum("*" in part for part in parts)
        for number in re.findall(r"\$(\d*)", principal):
            if not number or not 1 <= int(number) <= stars:
                raise ConfigError(
                    f"auth.principal_mapping_rules: {text!r}: ${number} refers to no *; "
                    f"there are {stars}"
                )
        try:
            check_principal(re.sub(r"\$\d+", "x", principal))
        except InvalidArgument as error:
            raise ConfigError(f"auth.principal_mapping_rules: {text!r}: {error.message}") from None
        if principal in {"User:*", "User:ANONYMOUS"}:
            raise ConfigError(
                f"auth.principal_mapping_rules: {text!r}: {principal} is not one principal's name; "
                f"auth.allow_anonymous admits callers without one"
            )
        return cls(kind, parts, principal)

    def apply(self, names: CertificateNames) -> str:
        """Returns the principal for a certificate with these names; empty = the rule does not
        match.
        """
        if not self.kind:
            first = next(iter((*names.uris, *names.dns, *names.names_of_kind("CN"))), "")
            return f"User:{first}" if first else ""
        for name in names.names_of_kind(self.kind):
            stood_for = self._match(name)
            if stood_for is not None:
                return self._filled(stood_for)
        return ""

    def _filled(self, stood_for: Sequence[str]) -> str:
        return re.sub(r"\$(\d+)", lambda found: stood_for[int(found[1]) - 1], self.principal)

    def _match(self, name: str) -> list[str] | None:
        parts = _cut(self.kind, name)
        if len(parts) != len(self.parts):
            return None
        stood_for = []
        for pattern, part in zip(self.parts, parts, strict=True):
            before, star, after = pattern.partition("*")
            if not star:
                if part != pattern:
                    return None
                continue
            middle = part[len(before) : len(part) - len(after)]
            long_enough = len(part) > len(before) + len(after)
            if not (long_enough and part.startswith(before) and part.endswith(after)):
                return None
            stood_for.append(middle)
        return stood_for


DEFAULT: Final = PrincipalRule("")


def _cut(kind: str, text: str) -> tuple[str, ...]:
    if kind == "DNS":
        text = text.lower()  # RFC 4343
    cut = _CUTS[kind]
    return tuple(text.split(cut)) if cut else (text,)


def parse_rules(texts: Sequence[str]) -> tuple[PrincipalRule, ...]:
    """Parses rules, in order; without any, returns ``DEFAULT`` alone.

    Raises:
        ConfigError: a rule is malformed.
    """
    return tuple(map(PrincipalRule.parse, texts)) or (DEFAULT,)


def principal_of(names: CertificateNames, rules: Sequence[PrincipalRule]) -> str:
    """Returns the principal of a certificate; empty = none. A cluster's certificate has none,
    whatever else it names: it carries no user's rights.
    """
    if names.cluster_ids:
        return ""
    for rule in rules:
        principal = rule.apply(names)
        if not principal:
            continue
        try:
            check_principal(principal)
        except InvalidArgument:
            return ""  # not valid as a principal of a grant
        # A certificate for "*" or "ANONYMOUS" must not stand for all callers or no caller.
        return "" if principal.partition(":")[2] in {"*", "ANONYMOUS"} else principal
    return ""
