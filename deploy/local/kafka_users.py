"""Users of a local broker: by password (SASL/PLAIN) or by certificate (TLS).

It makes settings of the broker and of its clients, and no certificates. A broker with users always
has Kafka's authorizer: without an ACL that allows it a request is denied, but with ``open_to_all``
a resource without any ACL is open to all.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

__all__ = ["AUTHORIZER", "BrokerUsers", "SaslUsers", "TlsUsers"]

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


class BrokerUsers(Protocol):
    """Users of a broker: the properties of its authentication, and of their clients."""

    @property
    def protocol(self) -> str:
        """Kafka's security protocol of both its listeners."""

    @property
    def admin(self) -> str:
        """The first super user, as which the start of the broker is checked."""

    def properties(self, listeners: Sequence[str]) -> Mapping[str, str]:
        """Returns lines of server.properties, for listeners of these names."""

    def client(self, user: str) -> dict[str, str]:
        """Returns librdkafka's properties of a user, all but ``bootstrap.servers``."""


class SaslUsers:
    """Users with passwords, in the clear: SASL_PLAINTEXT and PLAIN (loopback only).

    Args:
        names: of users beside the super users, such as ``["alice", "bob"]``.
        super_users: allowed everything, whatever the ACLs; the broker itself is the first.
        open_to_all: a resource without any ACL is open (allow.everyone.if.no.acl.found).

    Raises:
        ValueError: a name that a line of JAAS cannot hold, or no super user.
    """

    protocol: Final = "SASL_PLAINTEXT"

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        super_users: Sequence[str] = ("admin",),
        open_to_all: bool = False,
    ) -> None:
        _check([*super_users, *names], super_users)
        self.passwords: Final = {name: secrets.token_hex(8) for name in (*super_users, *names)}
        self._super = tuple(super_users)
        self._open = open_to_all

    @property
    def admin(self) -> str:
        return self._super[0]

    def properties(self, listeners: Sequence[str]) -> Mapping[str, str]:
        users = " ".join(f'user_{name}="{password}"' for name, password in self.passwords.items())
        own = f'username="{self.admin}" password="{self.passwords[self.admin]}"'
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            **{
                f"listener.name.{name.lower()}.plain.sasl.jaas.config": (
                    f"{module} required {own} {users};"
                )
                for name in listeners
            },
            **_authorizer(self._super, open_to_all=self._open),
        }

    def client(self, user: str) -> dict[str, str]:
        return {
            "security.protocol": self.protocol,
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": self.passwords[user],
        }


class TlsUsers:
    """Users with certificates; the common name is the user (``CN=alice`` → ``User:alice``).

    Args:
        ca: PEM file of the issuers that the broker and its clients trust.
        pairs: PEM files of certificate and unencrypted PKCS#8 key, by user. The first super user's
            is the broker's own, and needs the address 127.0.0.1 among its names.
        super_users: as of ``SaslUsers``.
        open_to_all: as of ``SaslUsers``.

    Raises:
        ValueError: a user without a pair, or no super user.
    """

    protocol: Final = "SSL"

    def __init__(
        self,
        ca: Path,
        pairs: Mapping[str, tuple[Path, Path]],
        *,
        super_users: Sequence[str] = ("admin",),
        open_to_all: bool = False,
    ) -> None:
        _check(list(pairs), super_users)
        if not set(super_users) <= set(pairs):
            raise ValueError(f"no certificate of {', '.join(set(super_users) - set(pairs))}")
        self._ca = ca
        self._pairs = dict(pairs)
        self._super = tuple(super_users)
        self._open = open_to_all

    @property
    def admin(self) -> str:
        return self._super[0]

    def properties(self, listeners: Sequence[str]) -> Mapping[str, str]:
        cert, key = self._pairs[self.admin]
        return {
            "ssl.keystore.type": "PEM",
            # Given in line, so that key and certificate may be two files.
            "ssl.keystore.certificate.chain": _one_line(cert),
            "ssl.keystore.key": _one_line(key),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": _one_line(self._ca),
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/",
            # Set for each listener: KRaft's controllers ignore the setting without a listener.
            **{f"listener.name.{name.lower()}.ssl.client.auth": "required" for name in listeners},
            **_authorizer(self._super, open_to_all=self._open),
        }

    def client(self, user: str) -> dict[str, str]:
        cert, key = self._pairs[user]
        return {
            "security.protocol": self.protocol,
            "ssl.ca.location": str(self._ca),
            "ssl.certificate.location": str(cert),
            "ssl.key.location": str(key),
        }


def _authorizer(super_users: Sequence[str], *, open_to_all: bool) -> dict[str, str]:
    found = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": ";".join(f"User:{name}" for name in super_users),
    }
    # Left out where it is false, as in most configs: brokers never report its value.
    return found | ({"allow.everyone.if.no.acl.found": "true"} if open_to_all else {})


def _check(names: Sequence[str], super_users: Sequence[str]) -> None:
    if not super_users:
        raise ValueError("a broker needs a super user: itself")
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"user {name!r}: expected letters, digits and . _ -")


def _one_line(file: Path) -> str:
    """Returns a PEM file as one line, a value in a properties file."""
    return file.read_text(encoding="ascii").strip().replace("\n", "\\n")
