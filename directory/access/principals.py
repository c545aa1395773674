"""Principals, hosts and super users: what they may look like, and which grants could be about a
caller; refuses to find out who a caller is.

A caller has one principal, ``Type:name`` as Kafka writes it, and one address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final

from resolver.errors import InvalidArgument

__all__ = [
    "ANONYMOUS",
    "ANY_HOST",
    "EVERYBODY",
    "Caller",
    "check_principal",
    "key_of",
    "parse_host",
    "parse_principal",
    "parse_super_users",
    "quote_for_message",
]

EVERYBODY: Final = "User:*"
"""In a grant: whoever it is, of whatever type (Kafka's ``WILDCARD_PRINCIPAL``)."""
ANONYMOUS: Final = "User:ANONYMOUS"
"""A caller without an identity."""
ANY_HOST: Final = "*"
"""In a grant: from wherever."""

_MOST_CHARACTERS: Final = 1024
_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Caller:
    """Principal and host of a call; made once a call.

    ``host`` is an address as ``parse_host`` writes it. Without one (a socket that has none; "from
    anywhere", when a person asks) only grants for every host are about the caller.
    """

    principal: str
    host: str = ""
    keys: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """The keys (``key_of``) of all grants that are about the caller, the narrowest first."""

    def __post_init__(self) -> None:
        names = dict.fromkeys((self.principal, EVERYBODY))
        hosts = (self.host, ANY_HOST) if self.host else (ANY_HOST,)
        keys = tuple(key_of(name, host) for name in names for host in hosts)
        object.__setattr__(self, "keys", keys)

    @classmethod
    def parse(cls, principal: str, host: str = "") -> Caller:
        """Returns a checked caller; an empty host is none.

        Raises:
            InvalidArgument: no principal, or no address.
        """
        return cls(check_principal(principal), parse_host(host) if host else "")


def key_of(principal: str, host: str) -> str:
    """Returns the key of the grants for a principal and a host."""
    return principal if host == ANY_HOST else f"{principal}\0{host}"


def parse_principal(text: str) -> tuple[str, str]:
    """Returns the type and the name of a principal; only the first colon parts them.

    Raises:
        InvalidArgument: not ``Type:name``, too long, or with characters that do not print.
    """
    kind, colon, name = text.partition(":")
    if not colon or not name or not _TYPE.fullmatch(kind):
        hint = f", such as User:{text}" if text and ":" not in text and text.isprintable() else ""
        raise InvalidArgument(
            f"principal: found {quote_for_message(text)}; expected Type:name{hint}",
            field="principal",
        )
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgument(
            f"principal: {len(text)} characters; expected at most {_MOST_CHARACTERS}",
            field="principal",
        )
    if not text.isprintable() or name != name.strip():
        raise InvalidArgument(
            f"principal: {quote_for_message(text)} has blanks around the name, or characters "
            "that do not print",
            field="principal",
        )
    return kind, name


def check_principal(text: str) -> str:
    """Returns the principal as it is, checked; ``*`` is a name only in ``User:*``.

    Raises:
        InvalidArgument: as ``parse_principal``.
    """
    _, name = parse_principal(text)
    if name == "*" and text != EVERYBODY:
        raise InvalidArgument(
            f"principal: found {quote_for_message(text)}; everybody, of whatever type, is "
            f"{EVERYBODY}",
            field="principal",
        )
    return text


def parse_host(text: str) -> str:
    """Returns an address in the one form in which it is compared: an IPv4 address that came in an
    IPv6 socket is an IPv4 address, and the interface behind ``%`` does not matter.

    Raises:
        InvalidArgument: not an address. Names of hosts are never looked up.
    """
    if not text.isascii():  # the standard library takes other scripts' digits, too
        raise _no_host(text)
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        raise _no_host(text) from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def _no_host(text: str) -> InvalidArgument:
    return InvalidArgument(
        f"host: found {quote_for_message(text)}; expected an IP address, or * for every host,",
        field="host",
    )


def parse_super_users(message: str | Iterable[str]) -> frozenset[str]:
    """Returns the super users of a setting: a list, or Kafka's ``User:a;User:b`` (blanks and empty
    parts do not matter there).

    Raises:
        InvalidArgument: one is no principal, or means everybody.
    """
    parts = message.split(";") if isinstance(message, str) else message
    found = frozenset(check_principal(part.strip()) for part in parts if part.strip())
    if EVERYBODY in found:
        raise InvalidArgument(
            f"super users: {EVERYBODY} would make everybody one; name them one by one",
            field="super_users",
        )
    return found


def quote_for_message(text: object, most: int = 80) -> str:
    """Returns what was found, in quotes, for a message: never longer than a line, all of it
    printable.
    """
    quoted = ascii(text)
    return quoted if len(quoted) <= most else f"{quoted[:most]}…"
