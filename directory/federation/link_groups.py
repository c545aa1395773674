"""Link groups: links between the same two processes over one connection share heartbeats.

A message on one of them shows that the other process and the connection work for all, so a group
sends one heartbeat per interval instead of one per link. Each link still sends one now and then,
from threads of its own cluster, so that a single hanging cluster is detected.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from math import inf
from typing import Final, Protocol

__all__ = ["LINK_GROUPS", "GroupedLink", "LinkGroup", "LinkGroups", "LinkPace"]

_log = logging.getLogger(__name__)

SILENT_BEATS: Final = 3
"""Number of consecutive missing heartbeats after which the other side counts as disconnected."""
_SILENT_GROUP_BEATS: Final = SILENT_BEATS - 0.5
"""The same number for a group; lower, because a group is checked only at intervals."""
_RARE_BEATS: Final = 5
"""Each link of a group sends one heartbeat of its own for this many of the group's."""
_QUIET_BEATS: Final = 4
"""Number of heartbeats without a change after which they are sent less often. Until then they are
frequent, since a change soon after another waits for the next heartbeat.
"""
_LOOKS_A_BEAT: Final = 4
_MOST_SECONDS: Final = 3_600.0
"""Longest interval that the other end may report; the config allows no longer one."""


def _awaited_seconds(own: float, reported: float) -> float:
    """Returns the heartbeat interval by which silence is measured: the longer one of both ends, so
    that both use the same. ``reported`` may be invalid, such as 0.
    """
    return max(own, min(reported, _MOST_SECONDS)) if reported > 0 else own


def _silent_seconds(beats: float, own: float, reported: float, most_seconds: float) -> float:
    """Returns the time without messages after which the other end is silent: at most
    ``most_seconds``, unless ``beats`` of the own interval take longer.
    """
    return max(beats * own, min(beats * _awaited_seconds(own, reported), most_seconds))


class LinkPace:
    """Pace of the heartbeats that one end of a link sends.

    Args:
        heartbeat_seconds: interval of the heartbeats of a link without a group.
        group: group of the link; None = the link shares no heartbeats.
        reported_seconds: interval of the other end; 0.0 = not reported.
        most_silent_seconds: longest allowed silence, however long the other end's interval is.
    """

    def __init__(
        self,
        heartbeat_seconds: float,
        group: LinkGroup | None,
        reported_seconds: float = 0.0,
        most_silent_seconds: float = inf,
    ) -> None:
        self._often: Final = heartbeat_seconds
        self._rarely: Final = heartbeat_seconds if group is None else group.link_seconds
        beats = SILENT_BEATS if group is None else SILENT_BEATS * _RARE_BEATS
        self.silent_seconds: Final = _silent_seconds(
            beats, heartbeat_seconds, reported_seconds, most_silent_seconds
        )
        """Time without messages after which the other end counts as disconnected."""
        self._marked = -1
        self._quiet = 0

    @property
    def seconds(self) -> float:
        """Time from the last message to the next heartbeat."""
        return self._rarely if self._quiet > _QUIET_BEATS else self._often

    def note_sent(self, marked: int) -> None:
        """Records that a message was sent, and how often the table was marked as changed until
        then.
        """
        self._quiet = self._quiet + 1 if marked == self._marked else 0
        self._marked = marked


class GroupedLink(Protocol):
    """Link of a group. Thread-safe; its methods must not wait."""

    @property
    def is_receiving(self) -> bool:
        """True while a message is processed; others wait until then."""

    def beat(self) -> bool:
        """Requests a heartbeat; returns False if the previous one is not sent yet."""

    def end(self) -> None:
        """Ends the link, since the other side is silent."""


class LinkGroup:
    """Group of links that share heartbeats. One thread calls ``look``."""

    def __init__(
        self,
        key: Hashable,
        heartbeat_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.key: Final = key
        self.heartbeat_seconds: Final = heartbeat_seconds
        self.link_seconds: Final = _RARE_BEATS * heartbeat_seconds
        """Interval of the heartbeats that each link sends by itself."""
        self._clock: Final = clock
        self._links: dict[GroupedLink, float] = {}
        """Links in the order of their next heartbeats, with the time without messages after which
        each ends; the mapping is replaced, never mutated.
        """
        self._sent_at = self._received_at = clock()

    @property
    def is_empty(self) -> bool:
        """True once the last link is discarded."""
        return not self._links

    def add(self, link: GroupedLink, silent_seconds: float) -> None:
        """Adds a link on which a message just arrived."""
        self._links = {**self._links, link: silent_seconds}
        self.note_received()

    def discard(self, link: GroupedLink) -> None:
        """Removes a link."""
        self._links = {one: silent for one, silent in self._links.items() if one is not link}

    def note_sent(self) -> None:
        """Records that a link sent a message."""
        self._sent_at = self._clock()

    def note_received(self) -> None:
        """Records that a message arrived on a link, or was processed."""
        self._received_at = self._clock()

    def look(self) -> None:
        """Ends the links whose other side is silent. If a heartbeat is due, requests it on one of
        the other links; if it is not sent, the next call requests one on another link.
        """
        links = self._links
        now = self._clock()
        silent = now - self._received_at
        if not any(one.is_receiving for one in links):
            for one, silent_seconds in links.items():
                if silent > silent_seconds:
                    one.end()
            links = {one: most for one, most in links.items() if silent <= most}
        if now - self._sent_at >= self.heartbeat_seconds * (1 - 1 / _LOOKS_A_BEAT):
            for one, most in links.items():
                self.discard(one)
                self._links = {**self._links, one: most}  # now last in the order
                if one.beat():
                    return


class LinkGroups:
    """All link groups of a process, and the thread that checks them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._groups: Final[dict[Hashable, LinkGroup]] = {}
        self._joined: Final = threading.Event()
        self._thread: threading.Thread | None = None

    def join(
        self,
        key: Hashable,
        link: GroupedLink,
        heartbeat_seconds: float,
        reported_seconds: float = 0.0,
        most_silent_seconds: float = inf,
    ) -> LinkGroup:
        """Returns the group of this key and of both ends' intervals, with the link added.
        ``most_silent_seconds``: see ``LinkPace``; it may differ between the links of a group.
        """
        awaited_seconds = _awaited_seconds(heartbeat_seconds, reported_seconds)
        whole_key = (key, heartbeat_seconds, awaited_seconds)
        silent_seconds = _silent_seconds(
            _SILENT_GROUP_BEATS, heartbeat_seconds, reported_seconds, most_silent_seconds
        )
        with self._lock:
            group = self._groups.get(whole_key)
            if group is None:
                group = LinkGroup(whole_key, heartbeat_seconds, self._clock)
                self._groups[group.key] = group
            group.add(link, silent_seconds)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="link-beats", daemon=True)
                self._thread.start()
        self._joined.set()
        return group

    def leave(self, group: LinkGroup, link: GroupedLink) -> None:
        """Removes a link from its group."""
        with self._lock:
            group.discard(link)
            if group.is_empty and self._groups.get(group.key) is group:
                del self._groups[group.key]

    def look(self) -> float | None:
        """Checks each group once. Returns the shortest heartbeat interval of the groups; None:
        there are no groups.
        """
        with self._lock:
            groups = list(self._groups.values())
            for group in groups:
                group.look()
        return min((one.heartbeat_seconds for one in groups), default=None)

    def _run(self) -> None:
        while True:
            self._joined.clear()
            seconds: float | None = 1.0
            try:
                seconds = self.look()
            except Exception:  # noqa: BLE001 - a bug must not end it in silence
                _log.exception("checking the heartbeats of links failed")
            if seconds is None:
                self._joined.wait()
            else:
                time.sleep(seconds / _LOOKS_A_BEAT)


LINK_GROUPS: Final = LinkGroups()
"""Link groups of this process."""
