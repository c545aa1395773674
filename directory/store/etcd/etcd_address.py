"""Address of a store in etcd, parsed and checked without a call to etcd.

``etcd://[USER[:PASSWORD]@]HOST[:PORT],…/PREFIX[?ca=FILE&cert=FILE&key=FILE&password_file=FILE]``.
User, password and files are percent-encoded if they contain ``@ : / ? & % #``, user and password
also if they contain blanks. No message and no text form of an address has a password in it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn, Self
from urllib.parse import unquote

from directory.store.base import IncompatibleStore

__all__ = ["FORM", "EtcdAddress"]

FORM: Final = "etcd://HOST:2379,HOST:2379,HOST:2379/PREFIX"
_SCHEME: Final = "etcd://"
_DEFAULT_PORT: Final = 2379
_FILES: Final = ("ca", "cert", "key", "password_file")
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._-]+)+")
_MAX_PREFIX: Final = 200
"""Most bytes of a prefix: each transaction has room for this many at each key."""
_HOST: Final = re.compile(r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """Address of a cluster's store, and the credentials for it."""

    endpoints: tuple[str, ...]
    """``host:port`` of members."""
    prefix: str
    """``/la``: the cluster's keys all begin with it and a slash."""
    user: str = ""
    """Name of the user; empty = none, or the one that etcd takes from the certificate."""
    given_password: str | None = field(default=None, repr=False)
    ca: str = ""
    """File with the certificates that etcd's are checked against; empty = no TLS."""
    cert: str = ""
    key: str = ""
    password_file: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses an address.

        Raises:
            IncompatibleStore: one sentence with the part, the value found and the one expected.
        """
        rest = text.removeprefix(_SCHEME)
        if rest == text:
            _fail("an address", text.partition("://")[0] + "://…", FORM)
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        if "@" in path or "@" in query:
            raise IncompatibleStore(
                "store etcd://…: an @ is after the first / or ?; in a user or password these"
                " are written %2F and %3F, and an @ in a file's name %40"
            )
        login, _, hosts = authority.rpartition("@")
        if any(map(str.isspace, login)):
            raise IncompatibleStore(
                "store etcd://…: a blank is in the user or the password; there it is written %20 (a"
                " tab %09)"
            )
        user, colon, password = login.partition(":")
        options = _options(query)
        address = cls(
            endpoints=tuple(_endpoint(host) for host in hosts.split(",")),
            prefix=_prefix(slash + path),
            user=unquote(user),
            given_password=unquote(password) if colon else None,
            **options,
        )
        address._check(login)
        return address

    def _check(self, login: str) -> None:
        if len(set(self.endpoints)) != len(self.endpoints):
            _fail("endpoints", ",".join(self.endpoints), "each member once")
        if login and not self.user:
            raise IncompatibleStore(
                "store etcd://…: a password without a user; expected USER:PASSWORD@"
            )
        if self.given_password is not None and self.password_file:
            _fail("password_file", self.password_file, "it, or a password in the address, not both")
        if self.user and self.given_password is None and not self.password_file:
            _fail("user", self.user, "a user with ?password_file=FILE")
        if self.password_file and not self.user:
            _fail("password_file", self.password_file, "USER@ before the hosts with it")
        if bool(self.cert) != bool(self.key):
            _fail("cert" if self.cert else "key", self.cert or self.key, "cert and key together")
        if self.cert and not self.ca:
            _fail("cert", self.cert, "ca=FILE with it: without one there is no TLS")

    def __str__(self) -> str:
        """Returns the address for people, without secrets."""
        return f"{_SCHEME}{','.join(self.endpoints)}{self.prefix}"

    @property
    def root(self) -> bytes:
        """Prefix of all keys of the cluster, with the slash that excludes ``/la2`` from ``/la``."""
        return f"{self.prefix}/".encode()

    @property
    def who(self) -> str:
        """User that etcd sees, for people."""
        if self.user:
            return f"user {self.user}"
        return "the user that its certificate names" if self.cert else "a client without a user"

    def password(self) -> str:
        """Returns the password, read again each time, since its file may have changed.

        Raises:
            IncompatibleStore: the file cannot be read, or is not UTF-8.
        """
        if self.given_password is not None:
            return self.given_password
        try:
            return self._read("password_file", self.password_file).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            # Not chained: the error has the file's contents, which may be a password.
            raise IncompatibleStore(
                f"store {self}: password_file: {self.password_file} is not UTF-8"
            ) from None

    def tls_files(self) -> tuple[bytes, bytes | None, bytes | None] | None:
        """Returns the contents of the CA, certificate and key files; None: no TLS.

        Raises:
            IncompatibleStore: one cannot be read.
        """
        if not self.ca:
            return None
        ca = self._read("ca", self.ca)
        if not self.cert:
            return ca, None, None
        return ca, self._read("cert", self.cert), self._read("key", self.key)

    def _read(self, name: str, file: str) -> bytes:
        try:
            return Path(file).read_bytes()
        except OSError as error:
            raise IncompatibleStore(
                f"store {self}: {name}: cannot read {file}: {error.strerror}"
            ) from error


def _fail(part: str, found: str, right: str) -> NoReturn:
    raise IncompatibleStore(f"store etcd://…: {part}: found {found!r}; expected {right}")


def _endpoint(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):  # an IPv6 address has colons of its own
        host, port = text, str(_DEFAULT_PORT)
    if not _HOST.fullmatch(host) or not (port.isascii() and port.isdigit()):
        _fail("endpoint", text, "HOST:PORT, separated by commas")
    if not 0 < int(port) < 65_536:
        _fail("endpoint", text, "a port from 1 to 65535")
    return f"{host}:{int(port)}"


def _prefix(path: str) -> str:
    if path in ("", "/"):
        _fail(
            "prefix",
            path,
            "a prefix of the cluster's own, such as /la (one etcd may hold many clusters)",
        )
    if not _PREFIX.fullmatch(path) or any(part in (".", "..") for part in path.split("/")):
        _fail("prefix", path, "names of [a-zA-Z0-9._-], each after one slash, such as /kdir/la")
    if len(path) > _MAX_PREFIX:
        _fail("prefix", f"{path[:20]}…", f"at most {_MAX_PREFIX} bytes")
    return path


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if name not in _FILES:
            near = difflib.get_close_matches(name, _FILES, n=1, cutoff=0.0)
            raise IncompatibleStore(
                f"store etcd://…: unknown option {name!r}; the nearest known one is {near[0]!r}"
            )
        if not equals or not value or name in options:
            _fail(name, unquote(value), f"{name}=FILE, once")
        options[name] = unquote(value)
    return options
