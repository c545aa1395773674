"""Verbs for topics that were in Kafka before kdir: ``adopt``; and ``ack``, which lets a stopped
reconciler continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resolver import units
from resolver.cli.create import ENTRY_FORMATS, PLAN, show_entry
from resolver.cli.output import Column, Styled, Table
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.session import PathArgument, parse_path_argument
from resolver.confirmation import confirm, is_interactive
from resolver.errors import InvalidArgument
from resolver.printable import cut_shown
from resolver.user_config import unreadable_file_error

if TYPE_CHECKING:
    from kdir.v1 import admin_pb2

    from resolver.cli.session import Session
    from resolver.path import Path

__all__ = ["VERBS", "DetachedTopics", "detached_topics", "note_omitted"]

_RULE_KEYS: Final = ("match", "split_on", "into", "strip_prefix", "ignore")


def _adopt(session: Session, arguments: Arguments) -> int:
    where = parse_path_argument(arguments.one("PATH"))
    topic, file = arguments.one("topic"), arguments.one("map")
    if [bool(topic), bool(file), arguments.flag("detached")].count(True) != 1:
        raise UsageError(
            "exactly one of --topic NAME, --map FILE and --detached is needed", verb="adopt"
        )
    if arguments.flag("detached"):
        return _adopt_detached(session, arguments, where)
    if topic:
        return _adopt_one(session, arguments, where, topic)
    return _adopt_by_rules(session, arguments, where, read_rules(file))


def _adopt_one(session: Session, arguments: Arguments, where: PathArgument, topic: str) -> int:
    from kdir.v1 import directory_pb2, entry_pb2

    request = directory_pb2.CreateEntryRequest(
        path=str(where.path),
        entry=entry_pb2.Entry(topic=entry_pb2.Topic(physical_name=topic)),
        adopt_existing=True,
        validate_only=arguments.flag("plan"),
    )
    answer = session.resolver.call(where.path, "DirectoryService.CreateEntry", request)
    did = "would adopt" if arguments.flag("plan") else "adopted"
    cluster = answer.authority.cluster.cluster
    show_entry(session, answer.entry, f"{did} {topic} of {cluster} as {answer.entry.path}")
    return 0


def _adopt_detached(session: Session, arguments: Arguments, where: PathArgument) -> int:
    """Adopts the detached topics that were below a directory, each at its last path. One without
    a recorded path gets its name in Kafka, in that directory.
    """
    from resolver.cli.error_hints import explain
    from resolver.errors import KdirError
    from resolver.path import Path

    detached = detached_topics(session, where.path)
    code = elsewhere = 0
    for one in detached.topics:
        name, last = one.physical_name, Path.of_entry(one.path) if one.path else None
        if last is not None and not where.path.is_prefix_of(last):
            elsewhere += 1
            continue
        target = PathArgument(last or where.path.child(name), directory=False)
        try:
            # Another cluster may be mounted there by now, and its Kafka have a topic of this name.
            owner = session.resolver.owner_of(target.path)
            if owner.cluster_id != detached.cluster_id:
                session.missing(
                    f"not taken back: {name} of {detached.cluster}: {target} is of {owner.cluster} "
                    f"now; elsewhere: kdir adopt PATH --topic {name}"
                )
                continue
            _adopt_at(session, arguments, target, name, is_last=last is not None)
        except KdirError as error:
            explain(error, session)
            session.out.note(f"not taken back: {name}; elsewhere: kdir adopt PATH --topic {name}")
            code = code or error.exit_code
        else:
            if last is None:
                session.out.note(f"the path that {name} had is not recorded")
    if elsewhere:
        session.out.note(
            f"left: {units.plural(elsewhere, 'topic')} that had paths elsewhere: "
            f"kdir adopt {detached.mount} --detached"
        )
    if not detached.topics:
        session.out.note("no topics are detached")
    note_omitted(session, detached)
    return code


def _adopt_at(
    session: Session, arguments: Arguments, where: PathArgument, topic: str, *, is_last: bool
) -> None:
    """Adopts a topic. For its last path, first makes the directories above that are gone.

    Raises:
        KdirError
    """
    from kdir.v1 import directory_pb2, entry_pb2

    from resolver.errors import InvalidNamespace

    try:
        _adopt_one(session, arguments, where, topic)
    except InvalidNamespace:
        if not is_last:
            raise
        above = where.path.parent
        request = directory_pb2.CreateEntryRequest(
            path=str(above),
            entry=entry_pb2.Entry(directory=entry_pb2.Directory()),
            make_parents=True,
            validate_only=arguments.flag("plan"),
        )
        session.resolver.call(above, "DirectoryService.CreateEntry", request)
        if arguments.flag("plan"):
            session.out.note(f"would make {above}, and adopt {topic} as {where}")
        else:
            session.out.note(f"made {above}")
            _adopt_one(session, arguments, where, topic)


class DetachedTopics(NamedTuple):
    """Topics of a cluster's Kafka that were left alone when their entries were removed."""

    topics: Sequence[admin_pb2.Adoption]
    omitted_count: int
    """Topics omitted from the answer for its size: some of them may be detached."""
    cluster: str
    cluster_id: str
    mount: str


def detached_topics(session: Session, path: Path) -> DetachedTopics:
    """Returns the detached topics of the cluster that a path is in.

    Raises:
        KdirError
    """
    from kdir.v1 import admin_pb2

    owner = session.resolver.owner_of(path)
    request = admin_pb2.AdoptTopicsRequest(validate_only=True, cluster=owner.cluster_id)
    answer = session.resolver.call(path, "AdminService.AdoptTopics", request)
    found = [one for one in answer.adoptions if one.action == "detached"]
    # Detached topics come first in the answer: if it has others, too, no detached one is omitted.
    is_whole = len(found) < len(answer.adoptions)
    omitted = 0 if is_whole else answer.omitted_count
    return DetachedTopics(found, omitted, owner.cluster, owner.cluster_id, str(owner.mount))


def note_omitted(session: Session, detached: DetachedTopics) -> None:
    """Reports topics that the answer had no room for; the exit code becomes 3."""
    if detached.omitted_count:
        session.missing(
            f"not looked at: {units.plural(detached.omitted_count, 'topic')} of {detached.cluster}"
        )


def read_rules(file: str) -> list[admin_pb2.MappingRule]:
    """Reads ``[[rule]]`` tables of a TOML file; ``-`` is stdin.

    Raises:
        InvalidArgument: the file may not be read or is invalid; names the rule, the key and what is
            expected.
        Unavailable: the file cannot be read now.
    """
    import sys
    import tomllib
    from pathlib import Path

    try:
        content = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
        content.encode()  # stdin may have bytes that are no text
        table = tomllib.loads(content)
    except OSError as error:
        raise unreadable_file_error(error, file) from error
    except (ValueError, RecursionError) as error:  # of an integer of too many digits, too
        raise InvalidArgument(f"{file}: is not TOML: {error}") from error
    rules = table.pop("rule", [])
    if table or not isinstance(rules, list) or not rules:
        raise InvalidArgument(f'{file}: [[rule]] tables were expected, each with match = "GLOB"')
    return [_rule(rule, f"{file}: rule {number}") for number, rule in enumerate(rules, start=1)]


def _rule(rule: Any, where: str) -> admin_pb2.MappingRule:
    from kdir.v1 import admin_pb2

    if not isinstance(rule, dict) or "match" not in rule:
        raise InvalidArgument(f'{where}: match = "GLOB" is missing')
    for key, value in rule.items():
        if key not in _RULE_KEYS:
            import difflib

            near = difflib.get_close_matches(key, _RULE_KEYS, n=1, cutoff=0.0)[0]
            raise InvalidArgument(f"{where}: unknown key {key!r}; did you mean {near!r}?")
        kind = bool if key == "ignore" else str
        if not isinstance(value, kind):
            raise InvalidArgument(
                f"{where}: {key}: {'true or false' if kind is bool else 'text'}"
                f" was expected, not {cut_shown(value)}"
            )
    return admin_pb2.MappingRule(**rule)


def _adopt_by_rules(
    session: Session,
    arguments: Arguments,
    where: PathArgument,
    rules: Sequence[admin_pb2.MappingRule],
) -> int:
    from kdir.v1 import admin_pb2

    request = admin_pb2.AdoptTopicsRequest(
        rules=rules,
        validate_only=arguments.flag("plan"),
        remap_adopted=arguments.flag("remap"),
        cluster=session.resolver.owner_of(where.path).cluster_id,
    )
    answer: admin_pb2.AdoptTopicsResponse = session.resolver.call(
        where.path, "AdminService.AdoptTopics", request
    )
    out = session.out
    if out.structured:
        for one in answer.adoptions:
            out.record(one)
    elif out.format == "name":
        out.lines(one.path for one in answer.adoptions if one.path)
    else:
        columns = [Column("ACTION"), Column("TOPIC"), Column("PATH"), Column("RULE", right=True),
                   Column("REASON")]  # fmt: skip
        Table(out, columns).rows([_adoption_row(one, len(rules)) for one in answer.adoptions])
    counts: dict[str, int] = {}
    for one in answer.adoptions:
        counts[one.action] = counts.get(one.action, 0) + 1
    reported = ", ".join(f"{action} {units.count(number)}" for action, number in counts.items())
    if answer.omitted_count:
        out.note(f"{units.plural(answer.omitted_count, 'more topic')} not listed")
    if answer.HasField("progress"):
        from resolver.cli import entry_rows

        out.note(f"continues in the background: {reported}")
        out.note(
            f"{entry_rows.progress_text(answer.progress)}; follow it with kdir stat "
            f"{answer.progress.path}"
        )
        return 0
    done = "dry run" if arguments.flag("plan") else "done"
    out.note(f"{done}: {reported or 'nothing to adopt'}")
    return 0


def _adoption_row(one: admin_pb2.Adoption, rule_count: int) -> Sequence[str | Styled]:
    # The rule after those of the file is that of the server's config for every other topic.
    rule = str(one.rule) if one.rule <= rule_count else "split_on"
    styles = {"collides": "bad", "move": "warn", "ignore": "faint", "detached": "faint"}
    return (
        Styled(one.action, styles.get(one.action, "")),
        one.physical_name,
        one.path or "-",
        rule if one.rule else "-",
        one.message,
    )


# -- ack -----------------------------------------------------------------------------------------


def _acknowledge(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import admin_pb2

    where = parse_path_argument(arguments.one("PATH"))
    resolver = session.resolver
    owner = resolver.owner_of(where.path)
    status = resolver.call(
        where.path,
        "AdminService.GetStatus",
        admin_pb2.GetStatusRequest(cluster=owner.cluster_id),
    )
    cluster, stop_reason = status.authority.cluster.cluster, status.kafka.stop_reason
    given = arguments.one("stopped")
    if not stop_reason and not given:
        session.out.note(f"{cluster} is not stopped: there is nothing to acknowledge")
        return 0
    if not stop_reason:
        raise UsageError(
            f"--stopped: {cluster} is not stopped, so there is nothing to acknowledge", verb="ack"
        )
    if not given:
        session.out.note(f"{cluster} has stopped: {stop_reason}", "bad")
        session.out.note(f"every difference from Kafka: kdir verify {where}")
        if not is_interactive():
            raise UsageError(
                "to acknowledge, pass the beginning of the stop reason: --stopped TEXT", verb="ack"
            )
        if not confirm("resume?"):
            session.out.note(f"{cluster} is still stopped")
            return 0
    # The whole reason is sent: the server refuses it if the reason has changed meanwhile.
    reason = stop_reason if not given or _begins_with(stop_reason, given) else given
    request = admin_pb2.AcknowledgeRequest(stop_reason=reason, cluster=owner.cluster_id)
    resolver.call(where.path, "AdminService.Acknowledge", request)
    session.out.note("acknowledged: resumed")
    return 0


def _begins_with(text: str, beginning: str) -> bool:
    """True if a text begins with ``beginning``, at the end of a term: ``7`` does not match
    ``70 of 100``.
    """
    rest = text.removeprefix(beginning)
    return rest != text and not rest[:1].isalnum()


_MOUNT: Final = Argument("PATH", "any path of the cluster, such as its mount", completes="path")

VERBS: Final = (
    Verb(
        name="adopt",
        summary="give existing Kafka topics a path",
        run=_adopt,
        writes=True,
        timeout_seconds=60.0,
        details=(
            "With --topic, that one topic of the cluster is adopted as PATH. With --map, all\n"
            "topics of the cluster that PATH is in, by ordered rules; the first that takes a name\n"
            "decides. What none takes is split at kafka.split_on of the server's config (RULE\n"
            "split_on); without one it stays flat. With --detached, all topics whose entries were\n"
            "removed while Kafka kept them (kdir ls --detached), and that were below PATH, come\n"
            "back where they were; their directories are made again, without policies and grants.\n"
            "Nothing is changed in Kafka. What is too much\n"
            "for one command goes on when it has ended, also when a server dies: kdir stat shows\n"
            "how far it is. FILE is TOML:\n"
            "\n"
            "    [[rule]]\n"
            '    match = "search.*"      # a glob over the whole name\n'
            '    split_on = "."          # search.clicks becomes search/clicks\n'
            '    into = "adopted"        # below this directory of the mount; optional\n'
            '    strip_prefix = "old."   # taken off the name first; optional\n'
            "    ignore = false          # true leaves these topics out"
        ),
        arguments=(
            Argument(
                "PATH", "the topic's new path; with --map any path of the cluster", completes="path"
            ),
        ),
        options=(
            Option(("--topic",), "the topic's name in Kafka", "NAME"),
            Option(("--map",), "mapping rules; - is stdin", "FILE", completes="file"),
            Option(("--remap",), "with --map: also move topics that were adopted before"),
            Option(("--detached",), "all detached topics that were below the directory PATH"),
            PLAN,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir adopt /la/tracking --map rules.toml --plan", "what each rule would do"),
            ("kdir adopt /la/tracking --map rules.toml", "do it"),
            ("kdir adopt /la/tracking/search/clicks --topic search.clicks", "one topic"),
            ("kdir adopt /la/tracking --detached --plan", "which topics would be taken back"),
        ),
    ),
    Verb(
        name="ack",
        summary="acknowledge a stop (vanish guard, changed Kafka cluster) and resume",
        run=_acknowledge,
        writes=True,
        details=(
            "When too many topics vanish or change at once, or another Kafka cluster answers,\n"
            "kdir stops all changes until an operator acknowledges. Shows the stop reason, and\n"
            "asks."
        ),
        arguments=(_MOUNT,),
        options=(Option(("--stopped",), "the stop reason, or its beginning; no prompt", "TEXT"),),
        formats=(),
        examples=(
            ("kdir ack /la/tracking", "show the reason, then confirm"),
            ("kdir ack /la/tracking --stopped '7 of 12 topics vanished'", "in a script"),
        ),
    ),
)
