"""The verb ``grow``: more partitions for the topics below a directory; asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from resolver import units
from resolver.cli.create import PLAN
from resolver.cli.kafka_wait import WAIT, clusters_at, wait_for_kafka, wait_seconds
from resolver.cli.output import Column, Table
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.plan_output import GROW_CALL, GROWTH
from resolver.cli.session import parse_path_argument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kdir.v1 import directory_pb2

    from resolver.cli.session import PathArgument, Session

__all__ = ["VERBS"]

_MOST: Final = 1 << 31


class _Growth(NamedTuple):
    """A topic that would get more partitions."""

    path: str
    before: int
    name: str
    """In Kafka, which would be asked now; empty: kdir changes no configs there."""


def _grow(session: Session, arguments: Arguments) -> int:
    where, out = parse_path_argument(arguments.one("PATH")), session.out
    count = arguments.whole("to")
    if not 0 < count < _MOST:
        raise UsageError("--to N is needed: how many partitions, up to 2^31-1", verb="grow")
    found = list(_growths(session, where, count))
    growing = [one for one in found if one.name]
    if out.structured:
        for one in growing:
            out.record({"path": one.path, "partitions": one.before, "grows_to": count})
    else:
        columns = [Column("PATH"), Column("PARTITIONS", right=True), Column("AFTER", right=True)]
        Table(out, columns).rows([[one.path, str(one.before), str(count)] for one in growing])
    left = len(found) - len(growing)
    if left:
        out.note(f"not armed for configs, left as they are: {units.plural(left, 'topic')}")
    if not growing:
        out.note(f"no armed topic at or below {where} has fewer than {count} partitions")
        return 0
    if arguments.flag("plan"):
        out.note(f"dry run: would grow {units.plural(len(growing), 'topic')}. {GROWTH}", "warn")
        return 0
    if not session.approve(
        f"grow {units.plural(len(growing), 'topic')} to {count} partitions", GROWTH
    ):
        out.note(f"unchanged: {where}")
        return 0
    for one in growing:
        _set_partitions(session, one.path, count, validate_only=False)
    out.note(f"armed: {units.plural(len(growing), 'topic')} are being grown to {count} partitions")
    if arguments.flag("wait"):
        names = {one.name for one in growing}
        owner = session.resolver.owner_of(where.path)
        done = wait_for_kafka(
            session,
            "configs",
            clusters_at(session, owner.cluster, str(owner.path), directory=where.directory),
            lambda call: call.operation == GROW_CALL and call.resource in names,
            "",
            wait_seconds(arguments),
        )
        if done:
            out.note(f"done: Kafka shows {count} partitions of each")
    return 0


def _growths(session: Session, where: PathArgument, count: int) -> Iterator[_Growth]:
    """Yields the topics at or below a path that have fewer partitions."""
    located = session.resolver.resolve(where.path, prefer=where.prefer)
    if located.kind == "topic":
        topics = [(located.path, located.partitions)]
    else:
        listing = session.resolver.list(where.path, recursive=True, kinds=("topic",))
        topics = [(str(one.path), one.entry.topic.partitions) for one in listing]
        for gap in listing.not_listed:
            session.not_listed(gap.path, gap.error)
        topics.sort()
    for path, partitions in topics:
        if partitions < count:
            planned = _set_partitions(session, path, count, validate_only=True)
            calls = planned.plan.kafka_calls
            name = next((call.resource for call in calls if call.operation == GROW_CALL), "")
            yield _Growth(path, partitions, name)


def _set_partitions(
    session: Session, path: str, count: int, *, validate_only: bool
) -> directory_pb2.UpdateEntryResponse:
    from kdir.v1 import directory_pb2

    request = directory_pb2.UpdateEntryRequest(
        path=path, kind="ENTRY_KIND_TOPIC", validate_only=validate_only
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
            "configs) stay as they are. partitions set on a directory is for new topics only."
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
