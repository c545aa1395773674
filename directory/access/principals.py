"""Principals and hosts: their syntax, and the keys of the grants that apply to a caller.

A caller has one principal, ``Type:name`` as in Kafka, and one address.
"""

from __future__ import annotations

import re
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
    "quote_for_message",
]

EVERYBODY: Final = "User:*"
"""In a grant: every principal, of every type (Kafka's ``WILDCARD_PRINCIPAL``)."""
ANONYMOUS: Final = "User:ANONYMOUS"
"""Principal of a caller without an identity."""
ANY_HOST: Final = "*"
"""In a grant: every host."""

_MOST_CHARACTERS: Final = 1024
_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Caller:
    """Principal and host of a call; made once for each call.

    ``host`` is an address as ``parse_host`` returns it. It is empty for a Unix socket, and where an
    operator asks about a principal without a host; then only grants for every host apply.
    """

    principal: str
    host: str = ""
    keys: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Keys (``key_of``) of all grants that apply to the caller, the narrowest first."""

    def __post_init__(self) -> None:
        names = dict.fromkeys((self.principal, EVERYBODY))
        hosts = (self.host, ANY_HOST) if self.host else (ANY_HOST,)
        keys = tuple(key_of(name, host) for name in names for host in hosts)
        object.__setattr__(self, "keys", keys)

    @classmethod
    def parse(cls, principal: str, host: str = "") -> Caller:
        """Returns a checked caller; ``host`` may be empty.

        Raises:
            InvalidArgument: the principal or the address is malformed.
        """
        return cls(check_principal(principal), parse_host(host) if host else "")


def key_of(principal: str, host: str) -> str:
    """Returns the key of the grants for a principal and a host."""
    return principal if host == ANY_HOST else f"{principal}\0{host}"


def parse_principal(text: str) -> tuple[str, str]:
    """Returns the type and the name of a principal, split at the first colon.

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
    """Returns the principal unchanged; ``*`` is valid only in ``User:*``.

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


def parse_host(text: str, or_else: str = "") -> str:
    """Returns an address in the canonical form in which hosts are compared: an IPv4-mapped IPv6
    address becomes IPv4, and the interface behind ``%`` is dropped. ``or_else``: what else the
    caller accepts, for the error message.

    Raises:
        InvalidArgument: not an address. Host names are never looked up.
    """
    if not text.isascii():  # the standard library accepts digits of other scripts, too
        raise _no_host(text, or_else)
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        raise _no_host(text, or_else) from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def _no_host(text: str, or_else: str) -> InvalidArgument:
    return InvalidArgument(
        f"host: found {quote_for_message(text)}; expected an IP address{or_else}",
        field="host",
    )


def quote_for_message(text: object, most: int = 80) -> str:
    """Returns a quoted value for a message: printable, and cut to one line."""
    quoted = ascii(text)
    return quoted if len(quoted) <= most else f"{quoted[:most]}…"
