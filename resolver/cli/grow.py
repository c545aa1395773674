"""The verb ``grow``: adds partitions to the topics below a directory, after approval."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from resolver import units
from resolver.cli.create import PLAN
from resolver.cli.kafka_wait import WAIT, clusters_at, wait_for_kafka, wait_seconds
from resolver.cli.output import Column, Table
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.session import parse_path_argument
from resolver.confirmation import GROW_CALL, GROWTH
from resolver.errors import DeadlineExceeded, KdirError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kdir.v1 import directory_pb2

    from resolver.cli.session import PathArgument, Session

__all__ = ["VERBS"]

_MOST: Final = 1 << 31
_PAUSE_SECONDS: Final = 0.2
_FINAL: Final = frozenset({"quota-exceeded", "rejected", "needs-approval", "not-armed"})
"""States of a difference that do not end by waiting."""


class _Growth(NamedTuple):
    """Topic with fewer partitions than requested."""

    path: str
    cluster_id: str
    before: int
    etag: str
    """Etag of the entry when it was shown, so that a later change is not overwritten."""
    name: str
    """Name of the topic in Kafka, if it would be grown now; else empty, with the reason in
    ``left``.
    """
    left: str
    """Reason why the topic would not be grown now; empty = it would."""


class _Candidate(NamedTuple):
    """Topic at or below the path."""

    path: str
    cluster_id: str
    partitions: int
    etag: str


@dataclass(slots=True)
class _Report:
    """Reporter of topics that are not grown, with the reason; the first error decides the exit
    code.
    """

    session: Session
    failed_count: int = 0
    exit_code: int = 0
    _silent: dict[str, KdirError] = field(default_factory=dict)
    """Errors of the clusters that did not answer, by cluster id: their other topics are not
    tried.
    """

    def set_partitions(
        self, path: str, cluster_id: str, count: int, etag: str, *, validate_only: bool
    ) -> directory_pb2.UpdateEntryResponse | None:
        """Sets a topic's partitions and returns the answer; after an error, reports it and returns
        None.
        """
        error = self._silent.get(cluster_id)
        if error is None:
            try:
                return _set_partitions(self.session, path, count, etag, validate_only=validate_only)
            except KdirError as raised:
                error = raised
                if isinstance(error, Unavailable | DeadlineExceeded):
                    self._silent[cluster_id] = error
        self.failed_count += 1
        self.exit_code = self.exit_code or error.exit_code
        self.session.out.note(f"not grown: {path}: {error}", "bad")
        return None


def _grow(session: Session, arguments: Arguments) -> int:
    where, out = parse_path_argument(arguments.one("PATH")), session.out
    count = arguments.whole("to")
    if not 0 < count < _MOST:
        raise UsageError("--to N is needed: how many partitions, up to 2^31-1", verb="grow")
    report = _Report(session)
    found = list(_growths(session, where, count, report))
    growing = [one for one in found if one.name]
    if out.structured:
        for one in growing:
            out.record({"path": one.path, "partitions": one.before, "grows_to": count})
    else:
        columns = [Column("PATH"), Column("PARTITIONS", right=True), Column("AFTER", right=True)]
        Table(out, columns).rows([[one.path, str(one.before), str(count)] for one in growing])
    for why, number in sorted(Counter(one.left for one in found if not one.name).items()):
        out.note(f"{why}: {units.plural(number, 'topic')}")
    if not growing:
        if not (report.failed_count or session.partial):
            out.note(f"no armed topic at or below {where} has fewer than {count} partitions")
        return report.exit_code
    if arguments.flag("plan"):
        out.note(f"dry run: would grow {units.plural(len(growing), 'topic')}. {GROWTH}", "warn")
        return report.exit_code
    if not session.approve(
        f"grow {units.plural(len(growing), 'topic')} to {count} partitions", GROWTH
    ):
        out.note(f"unchanged: {where}")
        return 0
    grown = _grow_each(growing, count, report)
    if arguments.flag("wait") and grown:
        until = time.monotonic() + wait_seconds(arguments)
        names = {one.name for one in grown}
        owner = session.resolver.owner_of(where.path)
        done = wait_for_kafka(
            session,
            "configs",
            clusters_at(session, owner.cluster, str(owner.path), directory=where.directory),
            lambda call: call.operation == GROW_CALL and call.resource in names,
            "",
            wait_seconds(arguments),
        )
        if done and _has_grown(session, grown, count, until):
            grown_topics = units.plural(len(grown), "topic")
            out.note(f"done: Kafka shows {count} partitions of {grown_topics}")
    return report.exit_code


def _has_grown(session: Session, grown: Sequence[_Growth], count: int, until: float) -> bool:
    """Returns whether each topic has ``count`` partitions in Kafka; reports the others with the
    reason (exit code 3). That no calls are left does not show it: a topic over its quota has none,
    either.
    """
    is_whole = True
    for one in grown:
        try:
            found, why = _partitions_in_kafka(session, one.path)
            while found < count and why not in _FINAL and time.monotonic() < until:
                time.sleep(_PAUSE_SECONDS)
                found, why = _partitions_in_kafka(session, one.path)
        except KdirError as error:
            found, why = 0, f"not known: {error.message}"
        if found < count:
            is_whole = False
            session.missing(f"not in Kafka: {one.path}: {found or '-'} partitions: {why}")
    return is_whole


def _partitions_in_kafka(session: Session, path: str) -> tuple[int, str]:
    """Returns the number of partitions that a topic has in Kafka, and the state of the difference
    from its policy.

    Raises:
        KdirError
    """
    from kdir.v1 import policies_pb2

    request = policies_pb2.GetEffectivePoliciesRequest(path=path)
    answer = session.resolver.call(path, "PolicyService.GetEffectivePolicies", request)
    for value in answer.values:
        if value.field == "partitions":
            return int(value.kafka_value or 0), value.kafka_state or "pending"
    return 0, "not-armed"  # the policy was unset meanwhile


def _grow_each(growing: Sequence[_Growth], count: int, report: _Report) -> list[_Growth]:
    """Grows the topics one after another, and returns those that grow; an error does not stop the
    others. Prints the summary even if it is interrupted.
    """
    grown: list[_Growth] = []
    try:
        for one in growing:
            if report.set_partitions(
                one.path, one.cluster_id, count, one.etag, validate_only=False
            ):
                grown.append(one)  # noqa: PERF401 - complete also after an interrupt
    finally:
        out, every = report.session.out, len(growing)
        if len(grown) == every:
            out.note(f"armed: {units.plural(every, 'topic')} {_are(every)} to {count} partitions")
        else:
            out.note(
                f"armed: {len(grown):,} of {units.plural(every, 'topic')} {_are(len(grown))} to "
                f"{count} partitions; the same command tries the others again",
                "warn",
            )
    return grown


def _are(count: int) -> str:
    return "is being grown" if count == 1 else "are being grown"


def _growths(
    session: Session, where: PathArgument, count: int, report: _Report
) -> Iterator[_Growth]:
    """Yields the topics at or below a path that have fewer than ``count`` partitions."""
    for one in _candidates(session, where):
        if one.partitions >= count:
            continue
        planned = report.set_partitions(
            one.path, one.cluster_id, count, one.etag, validate_only=True
        )
        if planned is not None:
            calls = planned.plan.kafka_calls
            name = next((call.resource for call in calls if call.operation == GROW_CALL), "")
            left = "" if name else _why_left(where, planned)
            yield _Growth(one.path, one.cluster_id, one.partitions, one.etag, name, left)


def _why_left(where: PathArgument, planned: directory_pb2.UpdateEntryResponse) -> str:
    """Returns why a topic gets no partitions now, as the beginning of a message."""
    from kdir.v1 import entry_pb2

    from resolver.path import Path

    if state := {
        entry_pb2.PROVISION_PENDING: "pending",
        entry_pb2.PROVISION_FAILED: "failed",
        entry_pb2.PROVISION_MISSING: "missing",
        entry_pb2.PROVISION_REPLACED: "replaced",
    }.get(planned.entry.topic.provision, ""):
        return f"{state} in Kafka (kdir stat PATH has the reason), left as they are"
    # Directories above the mount are not of this cluster: arm the mount instead.
    mount = planned.authority.cluster.mount or "/"
    at = mount if where.path.is_prefix_of(Path.parse(mount)) else where
    if planned.plan.held_topic_count:
        return f"held back until approved (kdir arm {at} --aspect configs)"
    if planned.plan.armed:
        return "being grown already"
    return f"not armed for configs (kdir arm {at} --aspect configs), left as they are"


def _candidates(session: Session, where: PathArgument) -> list[_Candidate]:
    """Returns the topics at or below a path, by path.

    Raises:
        KdirError: the owner of the path did not answer.
    """
    located = session.resolver.resolve(where.path, prefer=where.prefer)
    where.check_kind(located)
    if located.kind == "topic":
        topics = [(located.path, located.resolution.entry, located.authority)]
    else:
        listing = session.resolver.list(where.path, recursive=True, kinds=("topic",))
        topics = [(str(one.path), one.entry, one.authority) for one in listing]
        for gap in listing.not_listed:
            session.not_listed(gap.path, gap.error)
    return sorted(
        _Candidate(path, authority.cluster.cluster_id, entry.topic.partitions, entry.etag)
        for path, entry, authority in topics
    )


def _set_partitions(
    session: Session, path: str, count: int, etag: str, *, validate_only: bool
) -> directory_pb2.UpdateEntryResponse:
    from kdir.v1 import directory_pb2

    request = directory_pb2.UpdateEntryRequest(
        path=path, kind="ENTRY_KIND_TOPIC", etag=etag, validate_only=validate_only
    )
    request.entry.policies.partitions = count
    request.update_mask.paths.append("policies.partitions")
    answer: directory_pb2.UpdateEntryResponse = session.resolver.call(
        path, "DirectoryService.UpdateEntry", request
    )
    return answer


VERBS: Final = (
    Verb(
        name="grow",
        summary="give existing topics more partitions, in Kafka",
        run=_grow,
        destroys=True,
        writes=True,
        timeout_seconds=60.0,
        details=(
            "Shows each armed topic at or below PATH that has fewer partitions, and asks first:\n"
            "more partitions cannot be taken back, and a key's new data comes to another\n"
            "partition than its old data. Topics that no armed path covers (kdir arm --aspect\n"
            "configs) stay as they are. partitions set on a directory is for new topics only.\n"
            "A topic that fails is named and stops no other; the exit code is that of the first\n"
            "error. One that was changed after it was shown is not grown."
        ),
        arguments=(Argument("PATH", "a directory, or a topic", completes="path"),),
        options=(
            Option(("--to",), "how many partitions each topic is to have", "N"),
            PLAN,
            WAIT,
        ),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir grow /la/tracking/search --to 12 --plan", "which topics have fewer"),
            ("kdir grow /la/tracking/search/clicks --to 12", "one topic; asks first"),
        ),
    ),
)
