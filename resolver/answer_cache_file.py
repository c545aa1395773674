"""File of a client's cache, so that a restarted client begins with its last good answers.

An invalid file (another version, principal or set of servers, truncated or damaged) is ignored.
Lifetimes continue while no client runs: a file can only shorten them, also if the wall clock was
set back meanwhile. Within one boot of the machine its clock counts, too; after another boot all
lifetimes are over, and the wall clock counts for the ages only.

The file has a line of JSON with its identity, the time and the SHA-256 of the rest, then one line
of JSON for each record; messages of the contract are base64. It is replaced atomically and readable
by its owner only, since one principal's answers are not for others.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError
from kdir.v1 import resolve_pb2

from resolver import errors, reply_decoding
from resolver.answer_cache import Cache, CachedAnswer
from resolver.lookup_options import LookupOptions
from resolver.path import Path
from resolver.resolution.answer_lifetimes import saved_seconds_left
from resolver.resolution.values import Answer, AskedBecause, Referral, Sender
from resolver.revision_token import Position, ReadPositions
from resolver.topic_location import location_of

__all__ = ["AnswerCacheFile", "BootTime"]

_FORMAT: Final = "kdir-cache"
_VERSION: Final = 3
_MOST_ANSWERS: Final = 5_000
"""Most answers in a file; the newest are kept. The file is read before the first query and must not
delay it.
"""
_FOR_WRITES: Final = LookupOptions(for_writes=True)
_MOST_BYTES: Final = 64 * 1024 * 1024
_SAVE_SECONDS: Final = 60.0
"""Interval between saves: a client that is killed loses the answers since the last one."""


class BootTime(NamedTuple):
    """Time since the machine's boot, suspension included."""

    boot_id: str
    """Id of the boot; empty: not known."""
    seconds: float

    @classmethod
    def now(cls) -> BootTime:
        """Returns the time by the machine's clock; an unknown one if it has none."""
        try:
            boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
            return cls(boot_id, time.clock_gettime(time.CLOCK_BOOTTIME))
        except (AttributeError, OSError, ValueError):
            return cls("", 0.0)


class AnswerCacheFile:
    """File of one client's cache."""

    def __init__(
        self,
        file: str | os.PathLike[str],
        cache: Cache,
        servers: Sequence[str],
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
        boot_clock: Callable[[], BootTime] = BootTime.now,
    ) -> None:
        self._file = pathlib.Path(file)
        self._cache = cache
        self._servers = sorted(servers)
        self._clock = clock
        self._wall_clock = wall_clock
        self._boot_clock = boot_clock
        self._saved_at = clock()
        self._is_reported = False

    def load(self) -> int:
        """Loads the file into the cache; returns the number of answers. Never raises
        for the file.
        """
        try:
            if not self._is_usable():
                return 0
            with self._file.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
            return self._load_records(content)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            RecursionError,
            DecodeError,
            errors.KdirError,
        ):
            # Whatever is wrong with it: a cache is worth no error.
            return 0

    def _is_usable(self) -> bool:
        """True if the file is a regular one or does not exist; a symlink counts as its target.
        Opening a FIFO would block, and a device must not be replaced by a file.

        Raises:
            OSError: the file's type cannot be read, as in a directory of another user.
        """
        if self._file.is_file() or not self._file.exists():
            return True
        if not self._is_reported:
            import logging

            self._is_reported = True
            logging.getLogger(__name__).warning(
                "%s is no regular file: answers are not kept across restarts", self._file
            )
        return False

    def _load_records(self, content: bytes) -> int:
        first, _, body = content.partition(b"\n")
        head = json.loads(first)
        expected = {
            "format": _FORMAT,
            "version": _VERSION,
            "principal": self._cache.principal,
            "servers": self._servers,
            "sha256": _digest(head["saved_at"], head["boot_time"], body),
        }
        if len(content) > _MOST_BYTES or any(head.get(key) != expected[key] for key in expected):
            return 0
        passed_seconds, lived_seconds = self._passed_seconds(
            float(head["saved_at"]), BootTime(*head["boot_time"])
        )
        now = self._clock()
        count = 0
        for line in body.splitlines():
            record = json.loads(line)
            match record["kind"]:
                case "answer":
                    kept = _read_answer(record, passed_seconds, lived_seconds, now)
                    options = LookupOptions(for_writes=record.get("for_writes", False))
                    self._cache.put(options.key(str(kept.path)), kept)
                    count += 1
                case "referral":
                    referral, seconds = _read_referral(record, lived_seconds)
                    self._cache.add_referral(referral, seconds, now)
                case "own_mount":
                    self._cache.note_own_mount(Path.parse(record["mount"]))
                case _:
                    pass  # of a newer version that is otherwise the same
        return count

    def _passed_seconds(self, saved_at: float, boot_time: BootTime) -> tuple[float, float]:
        """Returns the seconds since the file was saved, for ages and for lifetimes."""
        passed = self._wall_clock() - saved_at
        if passed < 0:
            # A clock that was set back shows nothing about how much time has passed: all is stale.
            return float("inf"), float("inf")
        now = self._boot_clock()
        if not now.boot_id or now.boot_id != boot_time.boot_id:
            return passed, float("inf")  # the wall clock may have been set back by less than passed
        passed = max(passed, now.seconds - boot_time.seconds)
        return passed, passed

    def save_now_and_then(self) -> None:
        """Saves the cache if the last save is old enough."""
        if self._clock() - self._saved_at > _SAVE_SECONDS:
            self.save_if_possible()

    def save_if_possible(self) -> None:
        """Saves the cache; errors, such as a full disk, are ignored."""
        self._saved_at = self._clock()
        with contextlib.suppress(OSError):
            self.save()

    def save(self) -> None:
        """Saves the cache.

        Raises:
            OSError: the file cannot be written.
        """
        if not self._is_usable():
            return
        body = "".join(json.dumps(record) + "\n" for record in self._records()).encode()
        saved_at, boot_time = self._wall_clock(), self._boot_clock()
        head = {
            "format": _FORMAT,
            "version": _VERSION,
            "principal": self._cache.principal,
            "servers": self._servers,
            "sha256": _digest(saved_at, boot_time, body),
            "saved_at": saved_at,
            "boot_time": boot_time,
        }
        target = pathlib.Path(os.path.realpath(self._file))  # a symlink stays one
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the file, so that the replacement is one rename on one file system; of a name of
        # its own, so that clients and threads that save at once each replace it whole.
        descriptor, name = tempfile.mkstemp(".tmp", f"{target.name}.", target.parent)
        fresh = pathlib.Path(name)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - made with its rights already
                file.write(json.dumps(head).encode() + b"\n" + body)
            fresh.replace(target)
        except BaseException:  # also ^C: nobody would remove the file later
            fresh.unlink(missing_ok=True)
            raise

    def _records(self) -> Iterator[dict[str, Any]]:
        now = self._clock()
        for mount in self._cache.own_mounts():
            yield {"kind": "own_mount", "mount": str(mount)}
        for known in self._cache.referrals():
            if known.until > now:
                yield _write_referral(known.referral, known.until - now)
        answers = list(self._cache.answers.items())[-_MOST_ANSWERS:]
        for key, kept in answers:
            # Absences are short-lived, and answers to lookups with other options are rare.
            for_writes = key == _FOR_WRITES.key(str(kept.path))
            is_saved = isinstance(key, str) or for_writes
            if is_saved and kept.location is not None and not kept.location.links:
                yield _write_answer(kept, now, for_writes=for_writes)


def _digest(saved_at: float, boot_time: Sequence[object], body: bytes) -> str:
    return hashlib.sha256(f"{saved_at!r} {[*boot_time]!r}\n".encode() + body).hexdigest()


def _write_answer(kept: CachedAnswer, now: float, *, for_writes: bool) -> dict[str, Any]:
    location = kept.original or kept.location
    assert location is not None  # noqa: S101 - the caller looked; for mypy
    return {
        "kind": "answer",
        "path": str(kept.path),
        "for_writes": for_writes,
        "left": max(0.0, kept.until - now) if not kept.original else 0.0,
        "age": now - kept.confirmed_at,
        "resolution": _text(location.resolution.SerializeToString()),
        "authority": _text(location.authority.SerializeToString()),
        "read": _write_read(kept.read),
    }


def _read_answer(
    record: dict[str, Any], passed_seconds: float, lived_seconds: float, now: float
) -> CachedAnswer:
    resolution = resolve_pb2.Resolution.FromString(base64.b64decode(record["resolution"]))
    sender: Sender = reply_decoding.decode_sender(
        resolve_pb2.Authority.FromString(base64.b64decode(record["authority"]))
    )
    path, canonical = Path.parse(record["path"]), Path.parse(resolution.entry.path)
    age = float(record["age"]) + min(passed_seconds, 365 * 86_400.0)
    left = saved_seconds_left(float(record["left"]), lived_seconds)
    return CachedAnswer(
        location=location_of(Answer(canonical, 0, resolution), sender),
        until=now + left,
        path=path,
        canonical=canonical,
        cluster_id=sender.cluster_id,
        mount=sender.mount,
        asked_at=now - max(age, 0.0),
        read=_read_read(record["read"]),
        has_unknown_links=path != canonical,  # answers with known links are not saved
    )


def _write_referral(referral: Referral, left: float) -> dict[str, Any]:
    return {
        "kind": "referral",
        "mount": str(referral.mount),
        "endpoints": list(referral.endpoints),
        "cluster_id": referral.cluster_id,
        "cluster": referral.cluster,
        "epoch": referral.epoch,
        "left": left,
        "read": _write_read(referral.read),
    }


def _read_referral(record: dict[str, Any], lived_seconds: float) -> tuple[Referral, int]:
    left = saved_seconds_left(float(record["left"]), lived_seconds)
    referral = Referral(
        way=AskedBecause.CACHE,
        mount=Path.parse(record["mount"]),
        endpoints=tuple(str(endpoint) for endpoint in record["endpoints"]),
        cluster_id=str(record["cluster_id"]),
        cluster=str(record["cluster"]),
        epoch=int(record["epoch"]),
        read=_read_read(record["read"]),
    )
    return referral, int(left)


def _write_read(read: ReadPositions) -> dict[str, Any]:
    positions = {
        cluster_id: [place.incarnation, place.revision]
        for cluster_id, place in read.positions.items()
    }
    return {"positions": positions, "complete": read.is_complete}


def _read_read(record: dict[str, Any]) -> ReadPositions:
    positions = {
        str(cluster_id): Position(str(incarnation), int(revision))
        for cluster_id, (incarnation, revision) in record["positions"].items()
    }
    return ReadPositions(positions, bool(record["complete"]))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
