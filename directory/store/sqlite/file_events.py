"""Reads Linux's reports of writes to files (inotify), in one thread for all stores of the process.

Only writes by processes of this kernel are reported. No others can share a database, since sqlite's
write-ahead log needs shared memory.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

__all__ = ["FileEvents", "Subscription", "subscribe"]

_log = logging.getLogger(__name__)

TOGETHER_SECONDS: Final = 0.01
"""Time for which events are collected and then handled together: a commit writes its files some ten
times, the note last.
"""
_EVENT: Final = struct.Struct("iIII")  # watch descriptor, mask, cookie, bytes of the name
_BYTES: Final = 65_536
_MODIFIED: Final = 0x0000_0002
_MOVED: Final = 0x0000_0040 | 0x0000_0080  # from, to
_MADE_OR_REMOVED: Final = 0x0000_0100 | 0x0000_0200
_ITSELF: Final = 0x0000_0400 | 0x0000_0800  # removed, moved
_OVERFLOW: Final = 0x0000_4000
_ENDED: Final = 0x0000_8000
_ONLY_DIRECTORIES: Final = 0x0100_0000
_MASK: Final = _MODIFIED | _MOVED | _MADE_OR_REMOVED | _ITSELF | _ONLY_DIRECTORIES


class Subscription:
    """Subscription to files of one directory; ``callback`` is called after a change of any of
    them.
    """

    def __init__(
        self,
        names: Collection[str],
        callback: Callable[[], object],
        end: Callable[[Subscription], None],
    ) -> None:
        self.names: Final = frozenset(names)
        self.callback: Final = callback
        self._end: Final = end
        self.is_active = True
        """False once no more can come: the directory is gone, or this was closed."""

    def close(self) -> None:
        """Ends the subscription. Any thread may call it, more than once."""
        self._end(self)


class FileEvents:
    """Events of any number of directories, read by one thread."""

    def __init__(self) -> None:
        """Begins to read events.

        Raises:
            OSError: the system has no inotify, or allows no further use of it.
        """
        if sys.platform != "linux":
            raise OSError("no inotify")
        self._libc: Final = ctypes.CDLL(None, use_errno=True)
        self._descriptor: Final = self._call(self._libc.inotify_init1, os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock: Final = threading.Lock()
        self._watched: Final[dict[int, list[Subscription]]] = {}
        """Subscriptions by the kernel's watch number; a directory has one number, whatever its
        path.
        """
        threading.Thread(target=self._run, name="file-events", daemon=True).start()

    def subscribe(
        self, directory: Path, names: Collection[str], callback: Callable[[], object]
    ) -> Subscription:
        """Registers ``callback`` for changes of these files. It is called in the thread of the
        events and must be quick.

        Raises:
            OSError: the directory cannot be watched, or no more directories can.
        """
        subscription = Subscription(names, callback, self._discard)
        with self._lock:
            number = self._call(
                self._libc.inotify_add_watch, self._descriptor, os.fsencode(directory), _MASK
            )
            self._watched.setdefault(number, []).append(subscription)
        return subscription

    def _call(self, function: Callable[..., int], *arguments: object) -> int:
        result = function(*arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def _discard(self, subscription: Subscription) -> None:
        with self._lock:
            subscription.is_active = False
            for number, found in list(self._watched.items()):
                if subscription in found:
                    found.remove(subscription)
                    if not found:
                        del self._watched[number]
                        self._libc.inotify_rm_watch(self._descriptor, number)

    def _run(self) -> None:
        readable = select.poll()
        readable.register(self._descriptor, select.POLLIN)
        while True:
            readable.poll()
            time.sleep(TOGETHER_SECONDS)
            try:
                for one in self._changed(os.read(self._descriptor, _BYTES)):
                    one.callback()
            except Exception:  # noqa: BLE001 - a bug must not end it in silence
                _log.exception("reading events of files failed")

    def _changed(self, events: bytes) -> list[Subscription]:
        """Returns the subscriptions to the files of the events, each once."""
        changed: dict[Subscription, None] = {}
        at = 0
        with self._lock:
            while at < len(events):
                number, mask, _, length = _EVENT.unpack_from(events, at)
                at += _EVENT.size + length
                name = os.fsdecode(events[at - length : at].rstrip(b"\0"))
                if mask & _OVERFLOW:
                    for found in self._watched.values():
                        changed.update(dict.fromkeys(found))
                    continue
                for one in self._watched.get(number, ()):
                    if not name or name in one.names:
                        changed[one] = None
                if mask & _ENDED:
                    for one in self._watched.pop(number, ()):
                        one.is_active = False
        return list(changed)


_OPENING: Final = threading.Lock()


@functools.cache
def _of_this_process() -> FileEvents | None:
    try:
        return FileEvents()
    except OSError as error:
        _log.info("files are polled: Linux reports no changes of them (%s)", error)
        return None


def subscribe(
    directory: Path, names: Collection[str], callback: Callable[[], object]
) -> Subscription | None:
    """Registers ``callback`` for changes of these files; returns None if they have to be polled."""
    with _OPENING:
        events = _of_this_process()
    if events is None:
        return None
    try:
        return events.subscribe(directory, names, callback)
    except OSError as error:
        _log.info("files in %s are polled: Linux reports no changes of them (%s)", directory, error)
        return None
