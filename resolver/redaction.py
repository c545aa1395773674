"""Removes secrets from text for messages and logs: passwords in addresses, and tokens."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["redacted", "shown_unknown_address"]

_PASSWORD: Final = re.compile(
    r"(etcds?://[^/?:…\r\n]*|://[^/?\s:\[]*(?=:(?!\s|\d{1,5}:?\s))):[^/?\r\n]*@"
)
"""Pattern of a password in an address. It may contain blanks and ``@``, and ends at the last ``@``
before the first ``/`` or ``?``. A port with a sentence after it is no password, except in an
address of etcd: there a ``/`` follows the last port, and messages show an address that cannot be
parsed as ``etcd://…``.
"""
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")


def redacted(text: str) -> str:
    """Returns text without the passwords of addresses such as ``etcd://user:password@host``, and
    without the tokens of ``Authorization`` headers.
    """
    text = _PASSWORD.sub(r"\1:***@", text) if "://" in text else text
    return _BEARER.sub(r"\1 ***", text)


def shown_unknown_address(address: str) -> str:
    """Returns an address of unknown form as messages quote it: whole, or, if it contains ``@`` and
    so perhaps a password, only its scheme.
    """
    return f"{address.partition(':')[0]}:…" if "@" in address else address
