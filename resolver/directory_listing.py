"""Lists a directory, page by page, across mounts, links and unions; missing parts are reported,
never hidden.

Parts that could not be listed are in ``Listing.not_listed``, with the reason; the rest is returned
(HDFS calls it a partial listing). Mounts are entered; links are not, since they may form circles.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kdir.v1 import directory_pb2

from resolver import errors
from resolver.cached_lookup import CachedLookup, absent_error
from resolver.errors import KdirError
from resolver.glob import Glob
from resolver.lookup_options import LookupOptions
from resolver.owner_calls import OwnerCalls
from resolver.page_order import PageOrder
from resolver.path import Path
from resolver.resolution.state_machine import ResolutionOptions
from resolver.resolution.values import AbsentResult, AnswerResult, FailedResult, United
from resolver.transport import method

if TYPE_CHECKING:
    from kdir.v1 import entry_pb2, policies_pb2, resolve_pb2

__all__ = ["DirectoryListings", "Filter", "ListedEntry", "Listing", "NotListed"]

_DIRECTORY = 1
_MOST_MOUNTS = 16


@dataclass(frozen=True, slots=True)
class ListedEntry:
    """Entry of a listing, with its origin."""

    path: Path
    """Path below the requested one, as the caller wrote it; ``entry.path`` is canonical."""
    entry: entry_pb2.Entry
    authority: resolve_pb2.Authority
    """Authority of the answer."""
    inherited: policies_pb2.Policies | None
    """Policies that the entries on its page inherit; None if none are set."""
    source: Path
    """Canonical path of the listed directory; for a union, of the target."""


@dataclass(frozen=True, slots=True)
class NotListed:
    """Missing part of a listing, with the reason."""

    path: Path
    error: KdirError


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Filter of the entries of a listing."""

    name_glob: str = ""
    kinds: tuple[int, ...] = ()
    include_system: bool = False

    def passes(self, entry: entry_pb2.Entry) -> bool:
        """True if an entry passes; for listings that the server does not filter."""
        kind = _KINDS.get(entry.WhichOneof("kind") or "", 0)
        if self.kinds and kind not in self.kinds:
            return False
        name = entry.path.rpartition("/")[2]
        return not self.name_glob or Glob.parse(self.name_glob).matches_segment(name)


_KINDS = {"directory": 1, "topic": 2, "link": 3, "mount": 4}


class Listing:
    """Entries of a directory, as they arrive; to be iterated once. ``not_listed`` is complete at
    the end of the iteration.
    """

    def __init__(self, asked: Path) -> None:
        self.path = asked
        self.directory: entry_pb2.Entry | None = None
        """The listed directory itself; None for a union, or if the entry is not a directory."""
        self.has_directory = False
        """True if a directory was listed: the path itself or, for a union, a target."""
        self.authority: resolve_pb2.Authority | None = None
        """Authority of the first answer."""
        self.inherited: policies_pb2.Policies | None = None
        """Policies that the entries of the first page inherit."""
        self.not_listed: list[NotListed] = []
        self.revision_changed = False
        """True if a page was read at a newer revision than the page before it."""
        self._entries: Iterator[ListedEntry] = iter(())

    def __iter__(self) -> Iterator[ListedEntry]:
        return self._entries

    @property
    def is_partial(self) -> bool:
        """True if a part was missing up to the entry that was returned last."""
        return bool(self.not_listed)


class DirectoryListings:
    """Factory of listings. Thread-safe; each listing is used by one thread."""

    def __init__(
        self,
        lookups: CachedLookup,
        owners: OwnerCalls,
        rules: Callable[[LookupOptions], ResolutionOptions],
        clock: Callable[[], float],
    ) -> None:
        self._lookups = lookups
        self._owners = owners
        self._rules = rules
        self._clock = clock

    def open(
        self,
        path: Path,
        wanted: Filter,
        *,
        recursive: bool,
        across: bool,
        page_size: int,
        one_revision: bool,
        token: str,
        timeout_seconds: float,
    ) -> Listing:
        """Returns a listing after its first page was received.

        Raises:
            KdirError: nothing could be listed.
        """
        # Mounts must be received to be entered, so the server may not filter them out.
        narrows = not (recursive and across)
        request = directory_pb2.ListEntriesRequest(
            page_size=page_size,
            name_glob=wanted.name_glob if narrows else "",
            kinds=wanted.kinds if narrows else (),  # type: ignore[arg-type] # as numbers
            include_system=wanted.include_system,
            one_revision=one_revision,
            recursive=recursive,
        )
        listing = Listing(path)
        task = _Task(self, listing, request, token, timeout_seconds, across=across)
        entries = task.directory(path, path, depth=0)
        listing._entries = _primed(entries if narrows else _wanted_of(entries, wanted))  # noqa: SLF001 - the two are one
        if listing.authority is None and listing.not_listed:
            raise listing.not_listed[0].error
        return listing

    def locate_directory(self, path: Path, token: str, deadline: float) -> Any:
        """Returns the result of a resolution of a directory, with all targets of a union."""
        wanted = LookupOptions(prefer=_DIRECTORY)
        rules = self._rules(wanted).gathering_unions()
        since = self._clock()
        walk = self._lookups.resolve_uncached(path, rules, wanted, token, deadline)
        self._lookups.add_referral(walk, since)
        return walk.next_query()

    def page(
        self,
        found: AnswerResult,
        request: directory_pb2.ListEntriesRequest,
        deadline: float,
    ) -> directory_pb2.ListEntriesResponse:
        """Returns one page, from any server of the directory's owner."""
        rpc = method("DirectoryService.ListEntries")
        response: directory_pb2.ListEntriesResponse
        response = self._owners.call_owner(
            found.endpoints, rpc, request, deadline, cluster_id=found.sender.cluster_id
        )
        return response

    def deadline(self, timeout_seconds: float) -> float:
        """Returns the time on the clock ``timeout_seconds`` from now."""
        return self._clock() + timeout_seconds

    def token(self, token: str) -> str:
        """Returns the caller's token merged with this client's writes."""
        return self._lookups.session.with_token(token)


class _Task:
    """One listing in progress."""

    def __init__(
        self,
        lists: DirectoryListings,
        listing: Listing,
        request: directory_pb2.ListEntriesRequest,
        token: str,
        timeout_seconds: float,
        *,
        across: bool,
    ) -> None:
        self._lists = lists
        self._listing = listing
        self._request = request
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._across = across
        self._is_union = False
        """True if the listed directory is a union."""

    def directory(self, path: Path, shown: Path, depth: int) -> Iterator[ListedEntry]:
        """Yields the entries of a directory; ``shown`` is its path for the caller."""
        if depth > _MOST_MOUNTS:
            raise errors.ReferralLoop(
                f"{self._listing.path}: more than {_MOST_MOUNTS} mounts within each other"
            )
        deadline = self._lists.deadline(self._timeout_seconds)
        end = self._lists.locate_directory(path, self._token, deadline)
        match end:
            case AnswerResult():
                yield from self._found(end, shown, depth)
            case United():
                yield from self._union(end, shown, depth)
            case AbsentResult():
                raise absent_error(path, end)
            case FailedResult(error=error):
                raise error
            case _:
                raise AssertionError(f"a walk to {path} did not end: {end}")

    def _found(self, found: AnswerResult, shown: Path, depth: int) -> Iterator[ListedEntry]:
        """Yields the entries of a resolved directory; an entry of another kind yields itself."""
        resolution: Any = found.answer.payload
        if resolution.entry.WhichOneof("kind") == "directory":
            yield from self._pages(found, shown, depth)
        else:
            yield self._single(found, shown)

    def _single(self, found: AnswerResult, shown: Path) -> ListedEntry:
        resolution: Any = found.answer.payload
        authority: Any = found.sender.payload
        self._listing.authority = self._listing.authority or authority
        inherited = resolution.effective if resolution.HasField("effective") else None
        return ListedEntry(shown, resolution.entry, authority, inherited, found.answer.path)

    def _pages(self, found: AnswerResult, shown: Path, depth: int) -> Iterator[ListedEntry]:
        canonical = found.answer.path
        request = directory_pb2.ListEntriesRequest()
        request.CopyFrom(self._request)
        request.path = str(canonical)
        request.token = self._lists.token(self._token)
        order: PageOrder[entry_pb2.Entry] = PageOrder(
            str(canonical), lambda entry: (_below(entry, canonical)[1], _is_container(entry))
        )
        unreadable = 0
        while True:
            deadline = self._lists.deadline(self._timeout_seconds)
            response = self._lists.page(found, request, deadline)
            order.add_page(response.entries)
            inherited = response.inherited if response.HasField("inherited") else None
            self._note(response, shown, inherited)
            unreadable += response.unreadable_count
            for entry in response.entries:
                own, relative = _below(entry, canonical)
                # Not joined: the path of an entry may be beyond the limits.
                where = Path((*shown.segments, *relative))
                yield ListedEntry(where, entry, response.authority, inherited, canonical)
                if self._across and request.recursive and entry.HasField("mount"):
                    yield from self._part(own, where, depth + 1)
            if not response.next_page_token:
                break
            request.page_token = response.next_page_token
        if unreadable:
            error = errors.UnreadableRecord.of_entries(canonical, unreadable)
            self._listing.not_listed.append(NotListed(canonical, error))

    def _note(
        self,
        response: directory_pb2.ListEntriesResponse,
        shown: Path,
        inherited: policies_pb2.Policies | None,
    ) -> None:
        listing = self._listing
        listing.has_directory = True
        listing.revision_changed = listing.revision_changed or response.revision_changed
        if listing.authority is None:
            listing.authority = response.authority
            listing.inherited = inherited
            if shown == listing.path and not self._is_union:
                listing.directory = response.directory

    def _part(self, path: Path, shown: Path, depth: int) -> Iterator[ListedEntry]:
        """Yields the entries of a mounted cluster; an error is recorded in ``not_listed``, not
        raised.
        """
        try:
            yield from self.directory(path, shown, depth)
        except KdirError as error:
            self._listing.not_listed.append(NotListed(path, error))

    def _union(self, united: United, shown: Path, depth: int) -> Iterator[ListedEntry]:
        """Yields the targets' entries in name order (recursive: one target after another); if
        several have the same name, only that of the first target.
        """
        self._is_union = self._is_union or shown == self._listing.path
        parts: list[Iterator[ListedEntry]] = []
        failures: list[KdirError] = []
        self._listing.not_listed.extend(NotListed(path, error) for path, error in united.missing)
        for found in united.parts:
            target = found.answer.path
            try:
                parts.append(self._rest(target, _primed(self._found(found, shown, depth))))
            except KdirError as error:
                failures.append(error)
                if not isinstance(error, errors.Absent):  # removed a moment ago
                    self._listing.not_listed.append(NotListed(target, error))
        if not parts:
            reported = (error for error in failures if not isinstance(error, errors.Absent))
            raise united.trouble or next(reported, failures[0])
        seen: set[tuple[Path, bool]] = set()
        # A recursive listing is in depth-first order, which a merge by name would tear apart.
        for listed in _one_after_another(parts) if self._request.recursive else _merged(parts):
            key = (listed.path, _is_container(listed.entry))
            if key not in seen:
                seen.add(key)
                yield listed

    def _rest(self, target: Path, entries: Iterator[ListedEntry]) -> Iterator[ListedEntry]:
        try:
            yield from entries
        except KdirError as error:
            self._listing.not_listed.append(NotListed(target, error))


def _primed(entries: Iterator[ListedEntry]) -> Iterator[ListedEntry]:
    """Returns the iterator after its first element was received, so that early errors are raised
    here.
    """
    first = next(entries, None)
    return iter(()) if first is None else _chain(first, entries)


def _chain(first: ListedEntry, rest: Iterator[ListedEntry]) -> Iterator[ListedEntry]:
    yield first
    yield from rest


def _one_after_another(parts: list[Iterator[ListedEntry]]) -> Iterator[ListedEntry]:
    for part in parts:
        yield from part


def _merged(parts: list[Iterator[ListedEntry]]) -> Iterator[ListedEntry]:
    # heapq.merge is stable: if two parts have an equal name, the earlier part comes first.
    return heapq.merge(*parts, key=_order)


def _wanted_of(entries: Iterator[ListedEntry], wanted: Filter) -> Iterator[ListedEntry]:
    return (listed for listed in entries if wanted.passes(listed.entry))


def _order(listed: ListedEntry) -> tuple[str, bool]:
    return listed.path.name, _is_container(listed.entry)


def _is_container(entry: entry_pb2.Entry) -> bool:
    return bool(entry.WhichOneof("kind") != "topic")


def _below(entry: entry_pb2.Entry, directory: Path) -> tuple[Path, tuple[str, ...]]:
    """Returns an entry's path below the directory it was listed in.

    Raises:
        Lame: the entry is not below the directory, so the server is wrong.
    """
    try:
        path = Path.of_entry(entry.path)
        return path, path.below(directory)
    except (errors.InvalidPath, ValueError):
        raise errors.Lame(f"{directory}: its server lists {entry.path[:200]!r} in it") from None
