"""The verb ``verify``: shows the differences between store, memory, change log and Kafka, without
changing anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from resolver import units
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import Arguments, Option, Verb
from resolver.cli.streams import (
    CLUSTER,
    CLUSTER_PATH,
    ChosenCluster,
    chosen_cluster,
    messages,
    name_of,
    refuse_absent_path,
)
from resolver.errors import DeadlineExceeded, KdirError, Unavailable, Unreachable

if TYPE_CHECKING:
    from kdir.v1 import admin_pb2

    from resolver.cli.session import Session

__all__ = ["VERBS"]

_DIFFERENCES: Final = 5
"""Exit code if there are differences."""


class _Group(NamedTuple):
    """Key of differences that are equal except for their path or key."""

    compared: str
    field: str
    expected: str
    actual: str
    advice: str


_WHERES: Final = 3
_NAMED: Final = 20
"""Most detached topics that are named; ``kdir ls --detached`` lists all."""


def _verify(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import admin_pb2

    chosen = chosen_cluster(session, arguments)
    refuse_absent_path(session, arguments, chosen.mount)
    request = admin_pb2.VerifyRequest(
        cluster=chosen.requested, skip_kafka=arguments.flag("skip-kafka")
    )
    shown = _Shown(session, each=arguments.flag("each"))
    summary: admin_pb2.VerifySummary | None = None
    try:
        for message in _first_answering(session, chosen.servers, request):
            if message.HasField("summary"):
                summary = message.summary
            if session.out.structured:
                session.out.record(message)
            elif message.HasField("difference"):
                shown.add(message.difference)
    finally:  # even if the comparison ends early
        shown.end()
    if summary is None:
        raise Unreachable("the comparison ended before its summary: not everything was compared")
    _sum_up(session, name_of(session, chosen), summary)
    if summary.HasField("kafka_topics"):
        _note_detached(session, chosen)
    return _DIFFERENCES if summary.differences else 0


def _note_detached(session: Session, chosen: ChosenCluster) -> None:
    """Prints the topics that are in Kafka and not in the tree, which do not count as
    differences.
    """
    from kdir.v1 import admin_pb2

    request = admin_pb2.AdoptTopicsRequest(validate_only=True, cluster=chosen.requested)
    try:
        answer = session.ask_any(
            "AdminService.AdoptTopics", request, chosen.servers, cluster_id=chosen.requested
        )
    except KdirError:
        return  # such as for a caller without the right to adopt
    names = [one.physical_name for one in answer.adoptions if one.action == "detached"]
    if names:
        of = chosen.mount or "PATH"
        more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        session.out.note(
            f"{units.plural(len(names), 'topic')} in Kafka and not in the tree: "
            f"{', '.join(names[:_NAMED])}{more}"
        )
        session.out.note(
            f"  to list all: kdir ls --detached {of}; to take all back: kdir adopt {of} --detached"
        )


def _first_answering(
    session: Session, servers: tuple[str, ...], request: admin_pb2.VerifyRequest
) -> Iterator[admin_pb2.VerifyResponse]:
    attempts: list[str] = []
    last: KdirError = Unreachable("no known servers for this cluster")
    for server in servers:
        begun = False
        try:
            for message in messages(session, server, "AdminService.Verify", request):
                begun = True
                yield message
            return
        except (Unavailable, DeadlineExceeded) as error:
            if begun:
                raise
            attempts.append(f"{server}: {error}")
            last = error
    last.attempts = tuple(attempts)
    raise last


class _Shown:
    """Table of the differences: equal ones are in one row, unless ``each`` is set."""

    def __init__(self, session: Session, *, each: bool) -> None:
        self._out = session.out
        self._each = each
        self._groups: dict[_Group, tuple[int, list[str]]] = {}
        self._advice: dict[str, dict[str, None]] = {}
        self._table = Table(
            session.out,
            (Column("COMPARED"), Column("FIELD"), Column("EXPECTED"), Column("ACTUAL"),
             Column("COUNT", right=True), Column("PATH OR KEY")),
        )  # fmt: skip

    def add(self, one: admin_pb2.Difference) -> None:
        """Adds a difference."""
        if self._out.format == "name":
            self._out.line(one.path_or_key)
            return
        group = _Group(one.compared, one.field, one.expected, one.actual, one.advice)
        if self._each:
            self._table_row(group, 1, [one.path_or_key])
            return
        count, wheres = self._groups.get(group, (0, []))
        if len(wheres) < _WHERES:
            wheres = [*wheres, one.path_or_key]
        self._groups[group] = (count + 1, wheres)

    def end(self) -> None:
        """Prints the grouped rows and the advice, after the last difference."""
        for group, (count, wheres) in self._groups.items():
            self._table_row(group, count, wheres)
        for advice, fields in self._advice.items():
            self._out.note(f"  {', '.join(fields)}: {advice}")

    def _table_row(self, group: _Group, count: int, wheres: list[str]) -> None:
        more = f", and {count - len(wheres):,} more" if count > len(wheres) else ""
        self._table.rows(
            [[
                group.compared,
                group.field,
                group.expected or "-",
                Styled(group.actual or "-", "bad"),
                str(count),
                f"{', '.join(wheres)}{more}",
            ]]
        )  # fmt: skip
        if group.advice:
            self._advice.setdefault(group.advice, {})[group.field] = None


def _sum_up(session: Session, cluster: str, summary: admin_pb2.VerifySummary) -> None:
    compared = f"{units.plural(summary.rows, 'row')} at revision {summary.revision}"
    if summary.HasField("kafka_topics"):
        compared += f", {units.plural(summary.kafka_topics, 'topic')} of Kafka"
    found = "1 difference" if summary.differences == 1 else f"{summary.differences:,} differences"
    if not summary.differences:
        found = "no differences in the parts compared" if summary.message else "no differences"
    session.out.note(f"{cluster}: compared {compared}: {found}")
    if summary.message:
        session.missing(f"not compared: {summary.message}")


VERBS: Final = (
    Verb(
        name="verify",
        summary="compare store, memory, Kafka and change log, and name each difference",
        run=_verify,
        timeout_seconds=600.0,
        details=(
            "A running server compares all rows of its store with its replica in memory, the rows\n"
            "with each other, Kafka with both, and the change log with the store.\n"
            "Changes nothing. Exit code 0: no\n"
            "differences; 5: differences; 3: a part could not be compared."
        ),
        arguments=(CLUSTER_PATH,),
        options=(
            CLUSTER,
            Option(("--skip-kafka",), "leave Kafka out, and the change log in it"),
            Option(("--each",), "one row for each difference, instead of grouping equal ones"),
        ),
        formats=("table", "json", "yaml", "name"),
        examples=(
            ("kdir verify", "the cluster of the asked server"),
            ("kdir verify /la/tracking -o json", "one object for each difference, then a summary"),
        ),
    ),
)
