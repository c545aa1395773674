"""Endpoints in referrals: which of them may be called, and the recent health of each server (R9,
R10).

Networks apply to addresses. A host *name* is checked only against domains, since its address can
change between the check and the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from resolver.errors import InvalidArgument
from resolver.host_port import Endpoint, is_host_name, parse_endpoint
from resolver.printable import cut_shown

__all__ = ["AllowList", "ServerHealth"]

_METADATA_NAMES: Final = frozenset({"metadata", "metadata.google.internal", "instance-data"})
FAILED_SECONDS: Final = 2.0
"""Time for which a server that failed is tried after the others."""
LAME_SECONDS: Final = 10.0
"""Time for which a lame server is tried after the others (R3)."""
SLOW_SECONDS: Final = 30.0
"""Time for which a server that did not answer within its timeout is tried after the others."""
GOOD_SECONDS: Final = 600.0
"""Time for which a server that answered is tried first. After it the order is random again, so that
clients return to restarted servers.
"""
_MOST_REMEMBERED: Final = 1000


class AllowList:
    """Rule for which endpoints of referrals may be called. The start servers always may.

    With ``networks`` or ``names`` all other endpoints are refused. Special addresses (link-local,
    multicast) are always refused.

    Args:
        loopback: whether this machine may be called; set it if the start servers are on it.
        networks: CIDR networks that addresses must lie in.
        names: domains that host names must lie in, such as ``example.com``, compared as text: no
            name is looked up.
        least_port: lowest allowed port; lower ones belong to other services.
        ports: ports below ``least_port`` that are allowed, too.
        only_listed: refuse endpoints in neither list, even if both lists are empty.

    Raises:
        ValueError: a text of ``networks`` is no network.
    """

    def __init__(
        self,
        *,
        loopback: bool = False,
        networks: Sequence[str] = (),
        names: Sequence[str] = (),
        least_port: int = 1024,
        ports: Iterable[int] = (443,),
        only_listed: bool = False,
    ) -> None:
        self.only_listed = only_listed or bool(networks or names)
        self.loopback = loopback
        self.networks = tuple(networks)
        self.names = tuple(name.lower().strip(".") for name in names)
        self.least_port = least_port
        self.ports = frozenset(ports)
        self._verdicts: dict[str, str] = {}
        if networks:
            import ipaddress

            for network in networks:
                ipaddress.ip_network(network)

    @classmethod
    def for_servers(cls, start: Iterable[Endpoint]) -> AllowList:
        """Returns the default: loopback is allowed only if every start server is on loopback."""
        return cls(loopback=all(endpoint.is_loopback for endpoint in start))

    @classmethod
    def of(cls, allow: Iterable[str] | None, start: Iterable[Endpoint]) -> AllowList:
        """Returns the list of a config: CIDR networks and domains; None = the default.

        Raises:
            InvalidArgument: an element is neither.
        """
        if allow is None:
            return cls.for_servers(start)
        networks: list[str] = []
        names: list[str] = []
        for text in allow:
            (names if _is_domain(text) else networks).append(text)
        loopback = all(endpoint.is_loopback for endpoint in start)
        return cls(loopback=loopback, networks=networks, names=names, only_listed=True)

    @property
    def shown(self) -> str:
        """The list as text, for people."""
        return ", ".join((*self.networks, *self.names)) or "nothing"

    def why_not_allowed(self, text: str) -> str:
        """Returns why an endpoint may not be called; empty = it may."""
        verdict = self._verdicts.get(text)
        if verdict is None:
            verdict = self._judge(text)
            if len(self._verdicts) >= _MOST_REMEMBERED:
                self._verdicts.clear()
            self._verdicts[text] = verdict
        return verdict

    def _judge(self, text: str) -> str:
        try:
            endpoint = parse_endpoint(text)
        except InvalidArgument as error:
            return error.message
        if endpoint.port < self.least_port and endpoint.port not in self.ports:
            return f"endpoint {endpoint}: port {endpoint.port} is not allowed"
        why = self._address(endpoint) if endpoint.is_address else self._name(endpoint)
        return f"endpoint {endpoint}: {why}" if why else ""

    def _address(self, endpoint: Endpoint) -> str:
        import ipaddress

        address = ipaddress.ip_address(endpoint.host)
        inner = getattr(address, "ipv4_mapped", None) or getattr(address, "sixtofour", None)
        address = inner or address
        if address.is_loopback and not self.loopback:
            return "loopback is not allowed"
        if not address.is_loopback and (
            address.is_link_local
            or address.is_multicast
            or address.is_unspecified
            or address.is_reserved
            or address in ipaddress.ip_network("fd00:ec2::/32")
        ):
            return "link-local, multicast and other special addresses are not allowed"
        if self.only_listed and not any(
            address in ipaddress.ip_network(network) for network in self.networks
        ):
            return f"not in the allow list ({self.shown})"
        return ""

    def _name(self, endpoint: Endpoint) -> str:
        name = endpoint.host.rstrip(".")
        is_here = endpoint.is_loopback or name.endswith(".localhost")
        if is_here and not self.loopback:
            return "loopback is not allowed"
        if name in _METADATA_NAMES:
            return "a metadata service is not allowed"
        if self.only_listed and not any(
            name == domain or name.endswith(f".{domain}") for domain in self.names
        ):
            return f"not in the allow list ({self.shown})"
        return ""


class ServerHealth:
    """Recent results of each server, by which equal servers are ordered.

    No server is left out: if all failed recently, all are tried (as CoreDNS' ``forward`` does).
    Thread-safe without a lock, which a fork could leave held: each change is one step of a dict.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        shuffle: Callable[[list[str]], None] | None = None,
    ) -> None:
        self._clock = clock
        self._shuffle = shuffle
        self._bad_until: dict[str, float] = {}
        self._good_until: dict[str, float] = {}

    def note_success(self, endpoint: str) -> None:
        """Records a correct answer: since its connection is open, the server is tried first for
        ``GOOD_SECONDS``.
        """
        if endpoint in self._good_until and not self._bad_until:
            return
        self._bad_until.pop(endpoint, None)
        if len(self._good_until) >= _MOST_REMEMBERED:
            self._good_until.clear()
        self._good_until.setdefault(endpoint, self._clock() + GOOD_SECONDS)

    def note_failure(self, endpoint: str, seconds: float = FAILED_SECONDS) -> None:
        """Records a failure: the server is tried last for ``seconds``."""
        self._good_until.pop(endpoint, None)
        if len(self._bad_until) >= _MOST_REMEMBERED:
            self._bad_until.clear()
        self._bad_until[endpoint] = self._clock() + seconds

    def note_slow(self, endpoint: str) -> None:
        """Records that a server sent nothing within its timeout."""
        self.note_failure(endpoint, SLOW_SECONDS)

    def note_lame(self, endpoint: str) -> None:
        """Records a lame answer."""
        self.note_failure(endpoint, LAME_SECONDS)

    def is_bad(self, endpoint: str) -> bool:
        """True if the server recently failed or was lame."""
        until = self._bad_until.get(endpoint)
        return until is not None and until > self._clock()

    def troubles(self) -> dict[str, float]:
        """Returns the bad servers, each with the number of seconds for which it still counts as
        bad.
        """
        now = self._clock()
        return {one: until - now for one, until in self._bad_until.items() if until > now}

    def order(self, endpoints: Sequence[str]) -> Sequence[str]:
        """Returns the servers in order: those that answered, then untried ones in random order,
        then bad ones.
        """
        if len(endpoints) < 2:
            return endpoints
        shuffled = list(endpoints)
        if self._shuffle is None:
            import random

            self._shuffle = random.shuffle
        self._shuffle(shuffled)
        now = self._clock()
        # All are removed together: otherwise only the servers in use would ever be called.
        if any(until <= now for until in list(self._good_until.values())):
            self._good_until.clear()
        return sorted(shuffled, key=self._rank)

    def _rank(self, endpoint: str) -> int:
        if self.is_bad(endpoint):
            return 2
        return 0 if endpoint in self._good_until else 1


def _is_domain(text: str) -> bool:
    """True if an element of an allow list is a domain; False for a network.

    Raises:
        InvalidArgument: neither.
    """
    import ipaddress

    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        if is_host_name(text.removeprefix(".")):
            return True
        hint = ", since host bits are set" if "host bits" in str(error) else ""
        raise InvalidArgument(
            f"allow: found {cut_shown(text, 60)}{hint}; expected a network such as 10.0.0.0/8 or a "
            f"domain such as example.com",
            field="allow",
        ) from None
    return False
