"""The verb ``log``: shows the topics and the progress of a cluster's change log and why it waits;
resync, skip and off.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from resolver import units
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import Argument, Arguments, Verb
from resolver.cli.streams import CLUSTER, CLUSTER_PATH, call_chosen_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kdir.v1 import watch_pb2

    from resolver.cli.session import Session

__all__ = ["VERBS"]


def _log(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import watch_pb2

    action = arguments.one("ACTION", "status")
    found: watch_pb2.GetChangeLogResponse = call_chosen_cluster(
        session,
        arguments,
        "WatchService.GetChangeLog",
        watch_pb2.GetChangeLogRequest(),
        changes=action in _ACTS,
    )
    if action in _ACTS:
        return _act(session, arguments, found, _ACTS[action])
    out = session.out
    if out.structured:
        out.record(found)
        return 0
    cluster = found.authority.cluster.cluster
    if not found.configured and not found.HasField("state"):
        out.note(f"{cluster} keeps no change log: its servers' configs have no [change_log]")
        return 0
    Table(out, _COLUMNS).rows([[name, value] for name, value in _rows(found)])
    if found.state.waits_for_operator:
        out.note(f"an operator has to confirm it: kdir log resync --cluster {cluster}")
    return 0


_COLUMNS: Final = (Column("CHANGE LOG"), Column("VALUE"))


def _rows(found: watch_pb2.GetChangeLogResponse) -> Iterator[tuple[str, str | Styled]]:
    state, out_of = found.state, found.authority
    yield "cluster", f"{out_of.cluster.cluster} ({out_of.cluster.cluster_id})"
    yield "state topic", found.state_topic or Styled("not in the config of this server", "warn")
    yield "history topic", found.history_topic or "-"
    yield "brokers", ",".join(found.bootstrap_servers) or "-"
    if found.configured:
        registry = found.schema_registry
        yield "framing", f"ids of schema registry {registry}" if registry else "Avro single objects"
    yield "generation", str(state.generation) if state.generation else "none yet"
    is_begun = bool(state.generation and state.revision)  # until then it is the store's revision
    yield "published revision", str(state.revision) if is_begun else "none yet"
    yield "store revision", str(out_of.revision)
    if found.configured:
        yield "readers", "all that Kafka's ACLs let read the topics, which show everything"
    yield "publisher", found.publisher or "none"
    yield "waiting", _waiting(found)
    if state.message:
        yield "held up", Styled(state.message, "bad")


def _waiting(found: watch_pb2.GetChangeLogResponse) -> str:
    if not found.waiting_commits:
        return "nothing"
    age = max(0.0, time.time() - found.waiting_since_ms / 1000)
    return (
        f"{units.plural(found.waiting_commits, 'commit')}, "
        f"{units.plural(found.waiting_bytes, 'byte')}, the oldest made {units.age(age)}"
    )


class _Act(NamedTuple):
    """Operation on a change log: its RPC, the texts of its approval, and the text of its result."""

    method: str
    action: str
    consequence: str
    done: str


_ACTS: Final = {
    "resync": _Act(
        "ResyncChangeLog",
        "make the change log of {cluster} follow its store",
        "What the log holds and the store does not is removed from the log's state",
        "recorded; the server that publishes does it: kdir log",
    ),
    "skip": _Act(
        "SkipChangeLog",
        "give up {waiting} that the change log of {cluster} waits for",
        "Its history never gets them, only what differs afterwards, and that they were given up",
        "{given_up} given up; the history shows it once Kafka takes changes again: kdir log",
    ),
    "off": _Act(
        "EndChangeLog",
        "end the change log of {cluster}",
        "Changes are not published any more, and those that wait may be trimmed; the topics stay",
        "ended; its topics stay in Kafka",
    ),
}


def _act(
    session: Session, arguments: Arguments, found: watch_pb2.GetChangeLogResponse, act: _Act
) -> int:
    from kdir.v1 import admin_pb2

    session.allow_write("log")
    cluster, out = found.authority.cluster.cluster, session.out
    if act.method == "SkipChangeLog" and not found.waiting_commits:
        out.note(f"{cluster}: nothing waits for the change log")
        return 0
    waiting = units.plural(found.waiting_commits, "commit")
    if not session.approve(act.action.format(cluster=cluster, waiting=waiting), act.consequence):
        out.note("unchanged")
        return 0
    request = getattr(admin_pb2, f"{act.method}Request")()
    if act.method == "SkipChangeLog":
        request.revision = found.authority.revision  # no more than was approved
    answer = call_chosen_cluster(session, arguments, f"AdminService.{act.method}", request)
    commits = getattr(answer, "commits", 0)
    if act.method == "SkipChangeLog" and not commits:
        out.note(
            f"{cluster}: nothing more was given up: what was shown is published by now, or was "
            f"given up by this very command at another server: kdir log"
        )
    else:
        out.note(f"{cluster}: {act.done.format(given_up=units.plural(commits, 'commit'))}")
    if out.structured:
        out.record(answer)
    return 0


VERBS: Final = (
    Verb(
        name="log",
        summary="the change log of a cluster in Kafka: topics, progress, what holds it up",
        run=_log,
        destroys=True,
        details=(
            "The change log holds every change of a cluster in two topics of Kafka, once and in\n"
            "order, where [change_log] is in its servers' configs. It waits for an operator where\n"
            "publishing could remove much from the log; resync confirms that. skip gives up what\n"
            "waits for Kafka. off ends a log that was taken out of the configs. All three ask\n"
            "first, and are in kdir history. The topics show every change, whatever the rules of\n"
            "access are: who may read them is for Kafka's ACLs."
        ),
        arguments=(
            Argument(
                "ACTION",
                "status (default), resync, skip or off",
                0,
                choices=("status", "resync", "skip", "off"),
            ),
            CLUSTER_PATH,
        ),
        options=(CLUSTER,),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir log", "how far the asked cluster's log is, and why it waits"),
            (
                "kdir log resync /la --yes",
                "make the log follow the store",
            ),
            ("kdir log skip /la", "give up what waits, where Kafka stays away"),
            ("kdir log off /la", "end a log that is in no config any more"),
        ),
    ),
)
