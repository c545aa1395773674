"""Listeners of a cluster's brokers, and the check of each before a Kafka client receives it.

The protocol and mechanism are copied to clients' settings, to ``-o properties`` and to command
lines: a line break in one would begin another setting, such as a login module (CVE-2023-25194). So
each part must be one of few values, or have a strict form.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

from resolver.errors import InvalidArgument
from resolver.host_port import parse_endpoint
from resolver.printable import cut_shown

__all__ = ["MECHANISMS", "PROTOCOLS", "Listener", "check_listener"]

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's security protocols (``org.apache.kafka.common.security.auth.SecurityProtocol``)."""
MECHANISMS: Final = (
    "GSSAPI", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM",
)  # fmt: skip
"""The SASL mechanisms that Kafka's brokers and the large hosted ones offer."""

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)
_MOST_SERVERS: Final = 1_000
_MOST_CHECKED: Final = 4_096


class Listener(NamedTuple):
    """Listener of a cluster's brokers: its name, bootstrap servers and protocol. It contains no
    secret.
    """

    name: str
    bootstrap_servers: tuple[str, ...]
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = ""


@lru_cache(_MOST_CHECKED)  # every answer has the same few
def check_listener(listener: Listener) -> None:
    """Checks each part of a listener. Protocol and mechanism may be empty: PLAINTEXT, none.

    Raises:
        InvalidArgument: a part is invalid; the message names it, the value found and the value
            expected.
    """
    name, servers, protocol, mechanism = listener
    if not _NAME.fullmatch(name):
        raise _wrong("name", name, "expected 1 to 249 of a-z A-Z 0-9 . _ -")
    if not 0 < len(servers) <= _MOST_SERVERS:
        raise _wrong(
            "bootstrap_servers", f"{len(servers)} brokers", f"expected 1 to {_MOST_SERVERS}"
        )
    for server in servers:
        try:
            parse_endpoint(server)
        except InvalidArgument:
            raise _wrong("bootstrap_servers", server, "expected host:port") from None
    if protocol and protocol not in PROTOCOLS:
        raise _wrong("security_protocol", protocol, f"expected one of {', '.join(PROTOCOLS)}")
    if mechanism and mechanism not in MECHANISMS:
        raise _wrong("sasl_mechanism", mechanism, f"expected one of {', '.join(MECHANISMS)}")


def _wrong(field: str, found: str, right: str) -> InvalidArgument:
    shown = cut_shown(found)
    return InvalidArgument(f"{field}: found {shown}; {right}", field=field, found=shown)
