"""Verbs from a path to a Kafka topic and back: ``resolve``, ``which``, ``trace``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from resolver import units
from resolver.cli.entry_rows import stopped_text
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import FORMATS, Argument, Arguments, Option, Verb
from resolver.cli.session import parse_path_argument
from resolver.cli.streams import CLUSTER, chosen_cluster
from resolver.errors import InvalidArgument, KdirError
from resolver.message_values import plain

if TYPE_CHECKING:
    from resolver.cli.output import Output
    from resolver.cli.session import Session
    from resolver.resolution.values import Attempt
    from resolver.topic_location import Listener, TopicLocation

__all__ = ["VERBS"]

_MOST_AT_ONCE: Final = 1_000


# -- resolve -------------------------------------------------------------------------------------


def _resolve(session: Session, arguments: Arguments) -> int:
    parts = arguments.many("PATH")
    if len(parts) == 1 and parts[0] != "-":
        where = parse_path_argument(parts[0])
        token = arguments.one("token")
        found = session.resolver.resolve(where.path, prefer=where.prefer, token=token)
        where.check_kind(found)
        _show(session, arguments, found)
        return 0
    code = 0
    is_empty = True
    for chunk in _chunks(parts):
        is_empty = False
        failed = _resolve_chunk(session, arguments, chunk)
        code = code or failed
    if is_empty:
        session.out.note("stdin had no path: nothing was resolved")
    return code


def _chunks(parts: Sequence[str]) -> Iterator[list[str]]:
    """Yields the paths of the command line in chunks, with the paths of stdin in the place of
    ``-``.
    """
    chunk: list[str] = []
    for part in parts:
        for path in _stdin_lines() if part == "-" else [part]:
            if path:
                chunk.append(path)
            if len(chunk) == _MOST_AT_ONCE:
                yield chunk
                chunk = []
    if chunk:
        yield chunk


def _stdin_lines() -> Iterator[str]:
    """Yields the lines of stdin, stripped.

    Raises:
        InvalidArgument: stdin is not in the encoding of the locale.
    """
    try:
        for line in sys.stdin:
            yield line.strip()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"-: is not text: {error}") from error


def _resolve_chunk(session: Session, arguments: Arguments, parts: Sequence[str]) -> int:
    """Resolves many paths at once and prints the results; returns the exit code of the first error,
    or 0.
    """
    from resolver.cli.error_hints import explain

    outcomes: dict[str, TopicLocation | KdirError] = {}
    for prefer in ("", "directory"):
        paths: dict[str, Any] = {}
        for part in parts:
            try:
                where = parse_path_argument(part)
            except KdirError as error:
                outcomes[part] = error
                continue
            if where.prefer == prefer:
                paths[part] = where.path
        found = session.resolver.resolve_many(
            paths.values(), prefer=prefer, token=arguments.one("token")
        )
        outcomes.update(zip(paths, found, strict=True))
    code = 0
    for part in parts:
        outcome = outcomes[part]
        try:
            if isinstance(outcome, KdirError):
                raise outcome
            parse_path_argument(part).check_kind(outcome)
            _show(session, arguments, outcome)
        except KdirError as error:
            explain(error, session)
            code = code or error.exit_code
    return code


def _show(session: Session, arguments: Arguments, found: TopicLocation) -> None:
    out = session.out
    match out.format:
        case "json" | "yaml":
            out.record(_record(session, found))
        case "name":
            out.line(found.path)
        case "properties":
            out.lines(_properties(found, found.choose_listener(arguments.one("listener"))))
        case "kcat":
            out.line(_kcat(found, found.choose_listener(arguments.one("listener"))))
        case _ if out.human:
            out.lines(_described(found))
        case _:
            out.cells(_cells(found, arguments.one("listener")))
    _caveats(session, found)


def _record(session: Session, found: TopicLocation) -> dict[str, Any]:
    of_topic = {
        "topic": found.physical_name,
        "topic_id": found.topic_id,
        "partitions": found.partitions,
        "replication_factor": found.replication_factor,
        "bootstrap_servers": found.bootstrap_servers if found.kind == "topic" else "",
    }
    record: dict[str, Any] = {
        "path": found.path,
        "kind": found.kind,
        "cluster": found.cluster,
        "cluster_id": found.cluster_id,
        "mount": found.mount,
        **{name: value for name, value in of_topic.items() if value},
        "listeners": [plain(one) for one in found.authority.cluster.listeners],
        "has_container": found.has_container,
        "token": found.token,
        "stale": found.stale,
        "age_seconds": found.age_seconds,
        "links": [
            {"link": str(step.link), "target": str(step.target), "fallback": step.fallback}
            for step in found.links
        ],
        "entry": plain(found.entry),
    }
    record |= session.unconfirmed_fields(found.cluster_id)
    if found.stop_reason:
        record["stop_reason"] = found.stop_reason
    if found.effective is not None:
        record["effective"] = plain(found.effective)
    return record


def _properties(found: TopicLocation, listener: Listener) -> Iterator[str]:
    yield f"# {found.path} is topic {found.topic} of {found.cluster}"
    settings = {
        "bootstrap.servers": ",".join(listener.bootstrap_servers),
        "security.protocol": listener.security_protocol or "PLAINTEXT",
    }
    if listener.sasl_mechanism:
        settings["sasl.mechanism"] = listener.sasl_mechanism
    for name, value in settings.items():
        yield f"{name}={property_value(value)}"


def property_value(text: str) -> str:
    """Returns a value in the form that ``java.util.Properties#load`` reads: characters other than
    printable ASCII, backslashes, and a blank at the beginning are escaped.
    """
    units = memoryview(text.encode("utf-16-be", "surrogatepass")).cast("B")
    codes = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    escaped = "".join(
        "\\\\" if code == ord("\\") else chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}"
        for code in codes
    )
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _kcat(found: TopicLocation, listener: Listener) -> str:
    parts = ["-b", ",".join(listener.bootstrap_servers), "-t", found.topic]
    if listener.security_protocol not in {"", "PLAINTEXT"}:
        parts += ["-X", f"security.protocol={listener.security_protocol}"]
    if listener.sasl_mechanism:
        parts += ["-X", f"sasl.mechanism={listener.sasl_mechanism}"]
    return shlex.join(parts)


def _cells(found: TopicLocation, listener_name: str) -> list[str]:
    """Returns the cells of the tab-separated line; with the named listener, else the first one.

    Raises:
        InvalidArgument: the cluster has no such listener.
    """
    is_topic = found.kind == "topic"
    listener = None
    if is_topic and (listener_name or found.listeners):
        listener = found.choose_listener(listener_name)
    owner = found.effective.owner if found.effective is not None else ""
    return [
        found.path,
        found.kind,
        found.cluster,
        found.physical_name or "-",
        str(found.partitions or "-") if is_topic else "-",
        str(found.replication_factor or "-") if is_topic else "-",
        (listener.security_protocol or "PLAINTEXT") if listener is not None else "-",
        ",".join(listener.bootstrap_servers) if listener is not None else "-",
        owner or "-",
    ]


def _described(found: TopicLocation) -> Iterator[str | Styled]:
    """Yields the lines that are printed for people."""
    yield found.path
    for step in found.links:
        fallback = ", a fallback" if step.fallback else ""
        yield f"  by link     {step.link} → {step.target}{fallback}"
    yield f"  cluster     {found.cluster} ({found.cluster_id})    mounted at {found.mount}"
    if found.kind == "topic":
        size = f"{units.plural(found.partitions, 'partition')}, " if found.partitions else ""
        factor = f"replication {found.replication_factor}" if found.replication_factor else ""
        yield f"  topic       {found.topic}   {size}{factor}".rstrip(" ,")
        state = _trouble(found)
        if state:
            yield Styled(f"  state       {state}", "warn")
        yield from _listeners(found)
    else:
        yield f"  kind        {found.kind}"
    effective = found.effective
    if effective is not None and effective.owner:
        contact = f"   contact {effective.contact}" if effective.contact else ""
        yield f"  owner       {effective.owner}{contact}"
    if found.has_container:
        yield f"  also        a directory of this name: {found.path}/"


def _is_described(out: Output) -> bool:
    """True if the lines for people are printed, which include a topic's state."""
    return out.format == "table" and out.human


def _trouble(found: TopicLocation) -> str:
    from resolver.cli.entry_rows import state_of

    state = state_of(found.entry, human=True)
    if not isinstance(state, Styled):
        return ""
    why = found.entry.topic.provision_message
    return f"{state.text}: {why}" if why else state.text


def _listeners(found: TopicLocation) -> Iterator[str]:
    names = max((len(one.name) for one in found.listeners), default=0)
    protocols = max((len(one.security_protocol) for one in found.listeners), default=0)
    for number, one in enumerate(found.listeners):
        head = "  listeners   " if number == 0 else " " * 14
        servers = ",".join(one.bootstrap_servers)
        how = f"{one.name:<{names}}  {one.security_protocol:<{protocols}}"
        yield f"{head}{how}  {servers}  {one.sasl_mechanism}".rstrip()


def _caveats(session: Session, found: TopicLocation) -> None:
    """Reports on stderr a topic's state if it is not active, and stopped changes in Kafka."""
    trouble = _trouble(found) if found.kind == "topic" and not _is_described(session.out) else ""
    if trouble and not trouble.startswith("drift"):
        session.out.note(f"{found.path}: {trouble}", "warn")
    if found.stop_reason:
        note = stopped_text(found.stop_reason, found.path)
        session.out.note(f"{found.path}: changes in Kafka are stopped: {note}", "warn")


# -- which ---------------------------------------------------------------------------------------


def _which(session: Session, arguments: Arguments) -> int:
    parts = arguments.many("NAME")
    cluster, physical_name = parts if len(parts) == 2 else (arguments.one("cluster"), parts[0])
    if not cluster:
        chosen_cluster(session, arguments)  # raises if the servers belong to several clusters
    found = session.resolver.which(cluster, physical_name)
    out = session.out
    if out.structured:
        out.record(_record(session, found))
    elif out.format == "name":
        out.line(found.path)
    elif out.human:
        effective = found.effective
        owner = f"   owner {effective.owner}" if effective is not None and effective.owner else ""
        out.line(f"{found.path}{owner}")
    else:
        effective = found.effective
        out.cells([found.path, (effective.owner if effective is not None else "") or "-"])
    _caveats(session, found)
    return 0


# -- trace ---------------------------------------------------------------------------------------


def _trace(session: Session, arguments: Arguments) -> int:
    where = parse_path_argument(arguments.one("PATH"))
    trace = session.resolver.trace(where.path, prefer=where.prefer)
    if trace.location is not None:
        where.check_kind(trace.location)
    rows = [_step(session, number, step) for number, step in enumerate(trace.steps, start=1)]
    total = _took(session.out, trace.elapsed_seconds)
    if session.out.structured:
        for step in trace.steps:
            session.out.record(_step_record(step))
    else:
        found = trace.location
        if found is not None:
            rows.append(["=", *_destination(found, trace.lifetime_seconds), total])
        elif trace.error is not None:
            rows.append(["=", trace.error.reason, "-", "-", total])
        columns = [
            Column("#"),
            Column("SERVER"),
            Column("ANSWER"),
            Column("SOURCE"),
            Column("RTT", True),
        ]
        Table(session.out, columns, header=False).rows(rows)
    if trace.error is not None:
        trace.error.attempts = ()  # the table has them
        raise trace.error
    return 0


def _step(session: Session, number: int, step: Attempt) -> list[str | Styled]:
    reply = step.reply
    who = reply.sender.server if reply is not None and reply.sender.server else step.ask.endpoint
    answered: str | Styled = step.verdict
    how = "-"
    if reply is None:
        answered = Styled("no answer" if "UNREACHABLE" in step.verdict else step.verdict, "bad")
    else:
        how = _how(session, step)
    return [str(number), who, answered, how, _took(session.out, step.elapsed_seconds)]


def _took(out: Output, seconds: float) -> str:
    return units.took(seconds) if out.human else f"{seconds:.6f}"


def _how(session: Session, step: Attempt) -> str:
    from resolver.resolution.values import Referral

    assert step.reply is not None  # noqa: S101 - the caller has checked it
    sender, outcome = step.reply.sender, step.reply.outcome
    if isinstance(outcome, Referral):
        source = "mount table" if outcome.way.value == "direct" else "delegation"
        if outcome.way.value == "up":
            source = "parent"
        old = units.age(outcome.age_seconds) if session.out.human else f"{outcome.age_seconds}s"
        return f"{source} (age {old})"
    age = units.age(sender.age_seconds) if session.out.human else f"{sender.age_seconds:.3f}s"
    stale = ", stale" if sender.stale else ""
    return f"revision {sender.revision}, replica age {age}{stale}"


def _destination(found: TopicLocation, lifetime_seconds: int) -> tuple[str, str, str]:
    first = found.listeners[0] if found.listeners else None
    brokers = ",".join(first.bootstrap_servers) if first else ""
    reached = f"{first.security_protocol} {brokers}" if first else "-"
    is_topic = found.kind == "topic"
    name = f"{found.cluster}:{found.topic}" if is_topic else f"{found.cluster} {found.kind}"
    return name, reached, f"ttl {lifetime_seconds}s"


def _step_record(step: Attempt) -> dict[str, Any]:
    ask, reply = step.ask, step.reply
    record: dict[str, Any] = {
        "endpoint": ask.endpoint,
        "path": str(ask.path),
        "way": ask.way.value,
        "verdict": step.verdict,
        "elapsed_seconds": step.elapsed_seconds,
    }
    if reply is not None:
        record |= {
            "server": reply.sender.server,
            "cluster": reply.sender.cluster,
            "cluster_id": reply.sender.cluster_id,
            "mount": str(reply.sender.mount),
            "revision": reply.sender.revision,
            "stale": reply.sender.stale,
            "age_seconds": reply.sender.age_seconds,
        }
    return record


VERBS: Final = (
    Verb(
        name="resolve",
        summary="cluster, topic and bootstrap servers of a path",
        run=_resolve,
        details=(
            "kcat and properties print the settings of a Kafka client, never a secret. Several\n"
            "paths are resolved in batches; each failure goes to stderr, and the exit code is\n"
            "that of the first. json has the entry, the cluster, the topic and its listeners;\n"
            "where there is no terminal, a line is: path, kind, cluster, topic, partitions,\n"
            "replication, security protocol, bootstrap servers and owner, with tabs between."
        ),
        arguments=(
            Argument(
                "PATH", "what to resolve; - reads paths from stdin", most=None, completes="path"
            ),
        ),
        options=(
            Option(
                ("--listener",),
                "for kcat, properties and lines with tabs: which (default: the first)",
                "NAME",
            ),
            Option(("--token",), "minimum revision to read: the token of a write", "TOKEN"),
        ),
        formats=(*FORMATS, "properties", "kcat"),
        examples=(
            ("kdir resolve /la/tracking/search/clicks", "cluster, topic, listeners and owner"),
            ("kcat $(kdir resolve -o kcat /la/tracking/search/clicks)", "read it"),
            ("kdir resolve -o json - < paths.txt", "thousands at once"),
        ),
    ),
    Verb(
        name="which",
        summary="the path of a Kafka topic (reverse lookup)",
        run=_which,
        arguments=(
            Argument(
                "NAME", "[CLUSTER] TOPIC: the cluster's name or id, the topic's in Kafka", most=2
            ),
        ),
        options=(CLUSTER,),
        formats=FORMATS,
        details=(
            "Without a cluster, the topic is one of the asked servers' own cluster; servers of\n"
            "several clusters are refused."
        ),
        examples=(
            ("kdir which la-tracking search.clicks", "its path and owner"),
            ("kdir which search.clicks", "in the cluster of the asked server"),
        ),
    ),
    Verb(
        name="trace",
        summary="how a path is resolved, hop by hop",
        run=_trace,
        details=(
            "Shows every server queried, its answer, the source of the answer and the round-trip\n"
            "time. Bypasses all caches."
        ),
        arguments=(Argument("PATH", "what to resolve", completes="path"),),
        formats=FORMATS[:3],
        examples=(("kdir trace /ny/metrics/cpu", "each referral and the final answer"),),
    ),
)
