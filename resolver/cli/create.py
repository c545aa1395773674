"""Verbs that change a tree: ``mkdir``, ``create``, ``rm``, ``mv``, ``ln``.

Messages about completed changes are printed on stderr: the data of these verbs is the entry, in the
formats of ``-o``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from resolver import units
from resolver.cli.entry_rows import display_path, kind_of
from resolver.cli.kafka_wait import WAIT, wait_for_topic, wait_seconds
from resolver.cli.output import complain
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.plan_output import print_change_plan
from resolver.cli.planned_write import is_same_topic, send_planned
from resolver.cli.session import PathArgument, parse_path_argument
from resolver.errors import Absent, AlreadyExists, InvalidNamespace, KdirError

if TYPE_CHECKING:
    from kdir.v1 import directory_pb2, entry_pb2

    from resolver.cli.session import Session
    from resolver.path import Path
    from resolver.topic_location import TopicLocation

__all__ = [
    "ENTRY_FORMATS",
    "PLAN",
    "SET",
    "VERBS",
    "each",
    "removal_text",
    "show_entry",
]

ENTRY_FORMATS: Final = ("table", "json", "yaml", "name")

_TYPO_LETTERS: Final = 2
PLAN: Final = Option(("--plan",), "check everything, change nothing")
SET: Final = Option(
    ("--set",),
    "a policy of the new entry, as kdir set takes it; repeatable",
    "KEY=VALUE",
    repeated=True,
)


def each(session: Session, texts: Sequence[str], act: Callable[[PathArgument], None]) -> int:
    """Calls a function for each path; an error is printed and does not stop the others. Returns the
    exit code of the first error, or 0.
    """
    if len(texts) == 1:
        act(parse_path_argument(texts[0]))
        return 0
    from resolver.cli.error_hints import explain

    code = 0
    shown: set[str] = set()
    for text in texts:
        try:
            act(parse_path_argument(text))
        except KdirError as error:
            explain(error, session)
            code = code or error.exit_code
        except UsageError as error:
            if error.message not in shown:  # a wrong option is reported once, not for each path
                complain(*error.lines)
            shown.add(error.message)
            code = code or error.exit_code
    return code


def show_entry(session: Session, entry: entry_pb2.Entry, answered: str) -> None:
    """Prints the new entry in the format of ``-o``; without one, prints ``answered`` on stderr."""
    if session.out.structured:
        session.out.record(entry)
    elif session.out.format == "name":
        session.out.line(display_path(entry))
    else:
        session.out.note(answered)


def _create(
    session: Session, path: Any, entry: entry_pb2.Entry, arguments: Arguments, **fields: Any
) -> directory_pb2.CreateEntryResponse:
    from kdir.v1 import directory_pb2

    request = directory_pb2.CreateEntryRequest(
        path=str(path), entry=entry, validate_only=arguments.flag("plan"), **fields
    )
    answer: directory_pb2.CreateEntryResponse
    try:
        answer = session.resolver.call(path, "DirectoryService.CreateEntry", request)
    except KeyboardInterrupt:
        if not arguments.flag("plan"):  # the server continues the call
            session.out.note(f"interrupted: {path} may have been made: kdir stat {path}", "warn")
        raise
    return answer


def _policies(arguments: Arguments, entry: entry_pb2.Entry) -> None:
    """Puts the policies of ``--set`` into a new entry."""
    from resolver.cli.policy_arguments import assign_all

    assign_all(entry, arguments.many("set"), arguments.verb.name)


# -- mkdir ---------------------------------------------------------------------------------------


def _mkdir(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import entry_pb2

    planned: set[str] = set()
    """Paths that this dry run would already have made."""

    def make(where: PathArgument) -> None:
        made, exists = [str(where.path)], False
        entry = entry_pb2.Entry(directory=entry_pb2.Directory(closed=arguments.flag("closed")))
        _policies(arguments, entry)

        def create(*, make_parents: bool) -> directory_pb2.CreateEntryResponse:
            return _create(
                session,
                where.path,
                entry,
                arguments,
                make_parents=make_parents,
                allow_lock_out=arguments.flag("yes"),
            )

        # First without parents: an answer to a call with them shows neither that the directory
        # existed nor which parents were missing.
        try:
            answer = create(make_parents=False)
        except AlreadyExists:
            if not arguments.flag("parents"):
                raise
            answer, exists = create(make_parents=True), True
        except InvalidNamespace as error:
            missing, similar = error.metadata.get("missing"), error.metadata.get("similar", "")
            if not _approve_tier(session, arguments, missing, similar):
                session.out.note(f"unchanged: {where}")
                return
            answer = create(make_parents=True)
            if missing:
                made = _tiers(missing, where.path)
        if str(where.path) in planned:
            if not arguments.flag("parents"):
                raise _planned_before(where)
            exists = True
        made = [one for one in made if one not in planned]
        if arguments.flag("plan"):
            planned.update(made)
        text = f"{_did(arguments, 'make')} {', '.join(made)}"
        show_entry(session, answer.entry, f"unchanged: {where} exists" if exists else text)
        if exists:
            _note_not_set(session, where, entry, answer.entry)

    return each(session, arguments.many("PATH"), make)


def _planned_before(where: PathArgument) -> AlreadyExists:
    return AlreadyExists(f"{where.path} is already made by this command", path=where.path)


def _note_not_set(
    session: Session, where: PathArgument, wanted: entry_pb2.Entry, found: entry_pb2.Entry
) -> None:
    """Warns if an existing directory lacks policies of the command, or is not closed as
    requested.
    """
    from resolver.entry_fields import policy_fields

    has = dict(policy_fields(found.policies))
    missing = [
        f"{key}={value}" for key, value in policy_fields(wanted.policies) if has.get(key) != value
    ]
    if wanted.directory.closed and not found.directory.closed:
        missing.append("closed=true")
    if missing:
        session.out.note(f"not set at {where}, which exists: {', '.join(missing)}", "warn")


def _tiers(first: str, last: Path) -> list[str]:
    """Returns the paths of the directories that were made, from ``first`` down to ``last``."""
    above = first.count("/") - 1
    return ["/" + "/".join(last.segments[:depth]) for depth in range(above + 1, len(last) + 1)]


def _approve_tier(
    session: Session, arguments: Arguments, missing: str | None, similar: str
) -> bool:
    """Returns whether a missing directory may be made; asks first if its parent has an entry with a
    similar name.
    """
    if not missing or arguments.flag("plan"):
        return True
    if not is_likely_typo(missing.rpartition("/")[2], similar.rpartition("/")[2]):
        return True
    return session.approve(
        f"make the directory {missing}", f"There is {similar}, with almost the same name."
    )


def is_likely_typo(name: str, other: str) -> bool:
    """True if two names differ by one or two typing errors (a letter changed, added, removed, or
    swapped with the next one); False if only digits differ, as in ``v1`` and ``v2``.
    """
    digits = str.maketrans("", "", "0123456789")
    if not other or name == other or name.translate(digits) == other.translate(digits):
        return False
    return _edit_count(name, other) <= min(_TYPO_LETTERS, (len(name) - 1) // 2)


def _edit_count(one: str, other: str) -> int:
    """Returns the optimal string alignment distance of two names."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, above, row = row, before, [i]
        for j, second in enumerate(other, start=1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != second))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == second:
                cost = min(cost, above[j - 2] + 1)
            row.append(cost)
    return row[-1]


def _did(arguments: Arguments, verb: str) -> str:
    past = {"make": "made", "remove": "removed", "move": "moved", "create": "created"}
    return f"would {verb}" if arguments.flag("plan") else past[verb]


# -- create --------------------------------------------------------------------------------------


def _create_topic(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import entry_pb2

    topic = entry_pb2.Topic(
        physical_name=arguments.one("physical"),
        partitions=arguments.whole("partitions"),
        replication_factor=arguments.whole("replication-factor"),
    )
    if arguments.one("physical") and len(arguments.many("PATH")) > 1:
        raise UsageError("--physical names one topic: give one PATH", verb="create")
    if arguments.flag("wait") and arguments.flag("no-wait"):
        raise UsageError("--wait and --no-wait contradict each other: give one", verb="create")
    planned: set[str] = set()
    """Paths that this dry run would already have made."""

    def create(where: PathArgument) -> None:
        if where.directory:
            raise UsageError(f"{where} is a directory's path: kdir mkdir {where}", verb="create")
        entry = entry_pb2.Entry(topic=topic)
        _policies(arguments, entry)
        _check_sizes(entry)
        if str(where.path) in planned:
            if not arguments.flag("if-not-exists"):
                raise _planned_before(where)
            session.out.note(f"unchanged: {where} is already made by this command")
            return
        try:
            answer = _create(
                session,
                where.path,
                entry,
                arguments,
                wait_until_active=not arguments.flag("no-wait"),
            )
        except AlreadyExists:
            if not arguments.flag("if-not-exists"):
                raise
            _check_in_kafka(session, _show_existing(session, where, entry), arguments)
            return
        if arguments.flag("plan"):
            planned.add(str(where.path))
        made = answer.entry.topic
        location = f"topic {made.physical_name} of {answer.authority.cluster.cluster}"
        answered = f"{_did(arguments, 'create')} {answer.entry.path}: {location}"
        show_entry(session, answer.entry, answered)
        wanted = _default_physical_name(answer)
        if not arguments.one("physical") and made.physical_name != wanted:
            session.out.note(
                f"its name in Kafka is {made.physical_name}, not {wanted}, which is taken or not "
                f"allowed there; topics left in Kafka: kdir ls --detached {where.path.parent}",
                "warn",
            )
        _check_in_kafka(session, answer.entry, arguments)

    return each(session, arguments.many("PATH"), create)


def _check_sizes(entry: entry_pb2.Entry) -> None:
    """Checks that the sizes of a new topic do not contradict its policies: otherwise it would drift
    at once.

    Raises:
        UsageError: they do.
    """
    for option, name in (
        ("--partitions", "partitions"),
        ("--replication-factor", "replication_factor"),
    ):
        made, policy = getattr(entry.topic, name), getattr(entry.policies, name)
        if made and entry.policies.HasField(name) and made != policy:
            message = f"{option} {made} and --set {name}={policy} contradict each other: give one"
            raise UsageError(message, verb="create")


def _check_in_kafka(session: Session, entry: entry_pb2.Entry, arguments: Arguments) -> None:
    """Waits for the topic in Kafka with ``--wait``; reports a topic that Kafka does not have (exit
    code 3).

    Raises:
        KafkaRejected: Kafka refused it.
        KdirError
    """
    from kdir.v1 import entry_pb2

    if arguments.flag("plan"):
        return
    seconds = wait_seconds(arguments) if arguments.flag("wait") else 0.0
    topic = wait_for_topic(session, entry, seconds)
    match topic.provision:
        case entry_pb2.PROVISION_PENDING if not arguments.flag("no-wait"):
            session.missing(
                f"pending: Kafka has not created {topic.physical_name} yet; "
                f"follow it with kdir stat {entry.path}"
            )
        case entry_pb2.PROVISION_MISSING:
            session.missing(f"missing: Kafka does not have {topic.physical_name} any more")
        case entry_pb2.PROVISION_REPLACED:
            session.missing(f"replaced: Kafka has another topic {topic.physical_name} by now")
        case _:
            pass


def _show_existing(
    session: Session, where: PathArgument, wanted: entry_pb2.Entry
) -> entry_pb2.Entry:
    """Shows the existing topic at a path, and returns it.

    Raises:
        AlreadyExists: its name in Kafka is not the requested one.
    """
    from kdir.v1 import directory_pb2

    request = directory_pb2.GetEntryRequest(path=str(where.path), kind="ENTRY_KIND_TOPIC")
    found: directory_pb2.GetEntryResponse = session.resolver.call(
        where.path, "DirectoryService.GetEntry", request
    )
    name, asked = found.entry.topic.physical_name, wanted.topic.physical_name
    location = f"topic {name} of {found.authority.cluster.cluster}"
    if asked not in {"", name}:
        raise AlreadyExists(
            f"{found.entry.path} exists: {location}, not {asked}", path=found.entry.path
        )
    partitions = found.entry.topic.partitions
    size = f", {units.plural(partitions, 'partition')}" if partitions else ""
    show_entry(session, found.entry, f"unchanged: {found.entry.path} exists: {location}{size}")
    return found.entry


def _default_physical_name(answer: directory_pb2.CreateEntryResponse) -> str:
    """Returns a new topic's default name in Kafka: its path below the mount, joined by dots."""
    mount = answer.authority.cluster.mount.rstrip("/")
    return answer.entry.path.removeprefix(f"{mount}/").replace("/", ".")


# -- rm ------------------------------------------------------------------------------------------


def _remove(session: Session, arguments: Arguments) -> int:
    planned: list[PathArgument] = []
    """Entries that this dry run would already have removed; ``directory`` is True only for
    directories.
    """

    def remove(where: PathArgument) -> None:
        _remove_one(session, arguments, where, planned)

    return each(session, arguments.many("PATH"), remove)


def _is_gone(where: PathArgument, kind: str, planned: Sequence[PathArgument]) -> bool:
    """True if an entry would be removed by the removals that were planned before."""
    return any(
        one.directory == (kind == "directory")
        if one.path == where.path
        else one.directory and one.path.is_prefix_of(where.path)
        for one in planned
    )


def _remove_one(
    session: Session, arguments: Arguments, where: PathArgument, before: list[PathArgument]
) -> None:
    from kdir.v1 import directory_pb2

    found = session.resolver.resolve(where.path, prefer=where.prefer, no_follow=True)
    where.check_kind(found)
    if _is_gone(where, found.kind, before) and found.kind == "topic" and found.has_container:
        # After the topic's removal, the directory of the same name is at the path.
        found = session.resolver.resolve(where.path, prefer="directory", no_follow=True)
    if _is_gone(where, found.kind, before):
        raise Absent(f"{where.path} is already removed by this command", path=where.path)
    if found.kind == "mount" or (found.path == found.mount and not where.path.is_root):
        raise UsageError(f"{where.path} is a mount: kdir umount {where.path}", verb="rm")
    if found.kind == "directory" and not arguments.flag("recursive"):
        raise UsageError(f"{where.path} is a directory: kdir rm -r {where}", verb="rm")
    request = directory_pb2.DeleteEntryRequest(
        path=str(where.path),
        kind=f"ENTRY_KIND_{found.kind.upper()}",
        recursive=arguments.flag("recursive"),
        etag=arguments.one("etag"),
        validate_only=True,
    )
    planned = None
    if arguments.flag("plan") or not arguments.flag("yes"):
        planned = _delete(session, where, request)
        if arguments.flag("plan"):
            _removed(session, where, found.kind, planned, "would remove")
            print_change_plan(session.out, planned.plan, recorded=True)
            before.append(PathArgument(where.path, found.kind == "directory"))
            return
        if not session.approve(f"remove {removal_text(where, found.kind, planned)}"):
            session.out.note(f"unchanged: {where}")
            return
    answer = _delete_planned(session, where, found, request, planned)
    _removed(session, where, found.kind, answer, "removed")


def _delete_planned(
    session: Session,
    where: PathArgument,
    found: TopicLocation,
    request: directory_pb2.DeleteEntryRequest,
    planned: directory_pb2.DeleteEntryResponse | None,
) -> directory_pb2.DeleteEntryResponse:
    """Removes an entry. After a plan, if ``--etag`` was not given, removes it only if it is as it
    was planned.

    Raises:
        EtagMismatch: the entry was changed since.
    """
    if planned is None or request.etag:
        request.validate_only = False
        return _delete(session, where, request)

    def send(plan: directory_pb2.DeleteEntryResponse) -> directory_pb2.DeleteEntryResponse:
        request.etag, request.validate_only = plan.plan.etag, False
        return _delete(session, where, request)

    def plan_again() -> directory_pb2.DeleteEntryResponse:
        request.etag, request.validate_only = "", True
        return _delete(session, where, request)

    def is_same(now: directory_pb2.DeleteEntryResponse) -> bool:
        texts = {removal_text(where, found.kind, plan) for plan in (planned, now)}
        return len(texts) == 1 and is_same_topic(session, found.entry)

    return send_planned(planned, send, plan_again, is_same)


def _delete(
    session: Session, where: PathArgument, request: directory_pb2.DeleteEntryRequest
) -> directory_pb2.DeleteEntryResponse:
    answer: directory_pb2.DeleteEntryResponse = session.resolver.call(
        where.path, "DirectoryService.DeleteEntry", request
    )
    return answer


def _removed(
    session: Session,
    where: PathArgument,
    kind: str,
    answer: directory_pb2.DeleteEntryResponse,
    answered: str,
) -> None:
    if session.out.structured:
        session.out.record(answer)
    elif session.out.format == "name":
        session.out.line(str(where))
    else:
        session.out.note(f"{answered} {removal_text(where, kind, answer)}")


def removal_text(where: PathArgument, kind: str, answer: directory_pb2.DeleteEntryResponse) -> str:
    """Returns the removal as text for an approval, such as ``directory /la/x, with 3 topics below
    it, with the data that Kafka has of them``.
    """
    parts = [f"{kind} {where.path}"]
    topics, directories = answer.topic_count, answer.directory_count
    if kind == "directory":
        below = max(directories - 1, 0)
        inside = [units.plural(topics, "topic")] if topics else []
        inside += [units.plural(below, "directory", "directories")] if below else []
        if unread := answer.unreadable_count:
            inside.append(f"{units.plural(unread, 'entry', 'entries')} that cannot be read")
        if inside:
            parts.append(f"with {' and '.join(inside)} below it")
        else:
            parts[0] += " (empty)"
    text = ", ".join(parts)
    if not topics:
        return text
    in_kafka = _in_kafka(answer)
    return f"{text}{' ' if in_kafka.startswith('(') else ', '}{in_kafka}"


def _in_kafka(answer: directory_pb2.DeleteEntryResponse) -> str:
    """Returns the effect of a removal on the topics in Kafka, as text."""
    from kdir.v1 import entry_pb2

    entries = answer.plan.entries  # only in the answer to a plan
    match answer.provision:
        case entry_pb2.PROVISION_MISSING:
            return "which Kafka does not have any more: nothing is deleted there"
        case entry_pb2.PROVISION_REPLACED:
            return "while Kafka keeps the other topic that has its name by now"
        case entry_pb2.PROVISION_FAILED:
            return "which kdir has not made in Kafka: nothing is deleted there"
        case entry_pb2.PROVISION_PENDING if not answer.kafka_topics_deleted:
            return "which was not made in Kafka yet"
        case entry_pb2.PROVISION_UNSPECIFIED if answer.kafka_topics_deleted:
            # A directory, or an older server.
            but = [
                f"{units.count(number)} {what}"
                for number, what in (
                    (entries.kafka_missing, "not there any more"),
                    (entries.kafka_replaced, "replaced, which stay"),
                )
                if number
            ]
            kept = f" ({', '.join(but)})" if but else ""
            return f"with the data that Kafka has of them{kept}"
        case _ if answer.kafka_topics_deleted:
            return "with its data in Kafka"
        case _:
            kept = "topic" if answer.topic_count == 1 else "topics"
            return f"({kept} and data stay in Kafka)"


# -- mv ------------------------------------------------------------------------------------------


def _move(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import directory_pb2

    source, target = (
        parse_path_argument(arguments.one("PATH")),
        parse_path_argument(arguments.one("NEW-PATH")),
    )
    new_path = target.path.child(source.path.name) if target.directory else target.path
    request = directory_pb2.MoveEntryRequest(
        path=str(source.path),
        kind=source.kind,
        new_path=str(new_path),
        leave_link=arguments.flag("leave-link"),
        etag=arguments.one("etag"),
        validate_only=arguments.flag("plan"),
    )
    owner = session.resolver.owner_of(source.path, no_follow=True)
    answer: directory_pb2.MoveEntryResponse = session.resolver.call(
        source.path,
        "DirectoryService.MoveEntry",
        request,
        # A mount is the root of its own cluster, so the parent must move it.
        at_parent=owner.path == owner.mount,
    )
    answered = f"{_did(arguments, 'move')} {source.path} to {answer.entry.path}"
    if kind_of(answer.entry) == "topic":
        answered += f"; physical name unchanged ({answer.entry.topic.physical_name})"
    if arguments.flag("leave-link"):
        answered += (
            "; left a link at the old path"
            if not arguments.flag("plan")
            else "; would leave a link at the old path"
        )
    show_entry(session, answer.entry, answered)
    if arguments.flag("plan"):
        print_change_plan(session.out, answer.plan)
    return 0


# -- ln ------------------------------------------------------------------------------------------


def _link(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import entry_pb2

    targets = [str(parse_path_argument(text).path) for text in arguments.many("TARGET")]
    link = entry_pb2.Link(
        targets=targets,
        mode=(entry_pb2.LINK_MODE_UNION if arguments.flag("union") else entry_pb2.LINK_MODE_FIRST),
        writes=(
            entry_pb2.LINK_WRITES_FOLLOW
            if arguments.flag("writes-follow")
            else entry_pb2.LINK_WRITES_STAY
        ),
        fall_back_on_absent=arguments.flag("fall-back-on-absent"),
    )
    where = parse_path_argument(arguments.one("PATH"))
    answer = _create(session, where.path, entry_pb2.Entry(link=link), arguments)
    made = f"link {answer.entry.path} → {', '.join(targets)}"
    show_entry(session, answer.entry, f"{_did(arguments, 'make')} {made}")
    for target in targets:
        _note_missing_target(session, target)
    return 0


def _note_missing_target(session: Session, target: str) -> None:
    """Prints a note if the target of a link is absent, or could not be checked."""
    try:
        session.resolver.resolve(target)
    except Absent:
        session.out.note(f"{target} is absent: the link leads nowhere until it is made", "bad")
    except KdirError as error:
        session.out.note(f"{target} was not checked: {error.message} ({error.reason})", "bad")


_PATHS: Final = Argument("PATH", "path of the entry", most=None, completes="path")
_ETAG: Final = Option(("--etag",), "only if the entry is still as stat -o json showed it", "ETAG")

VERBS: Final = (
    Verb(
        name="mkdir",
        summary="create directories and their missing parents",
        run=_mkdir,
        writes=True,
        details=(
            "No other verb creates directories: a topic needs an existing directory. All missing\n"
            "parents are made and named (KIP-37); if the first of them is one or two letters off\n"
            "an existing name, it asks first, and is refused without --yes where it cannot ask."
        ),
        arguments=(Argument("PATH", "path of the new directory", most=None, completes="path"),),
        options=(
            Option(("-p", "--parents"), "an existing directory is no error"),
            SET,
            Option(("--closed",), "no allow further below opens it"),
            Option(
                ("-y", "--yes"),
                "a parent that looks like a typo, too; close it also against yourself",
            ),
            PLAN,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir mkdir /la/tracking/search", "create it, and /la/tracking if missing"),
            (
                "kdir mkdir /la/ads --set owner=ads --set retention.ms=7d",
                "with policies of its own",
            ),
        ),
    ),
    Verb(
        name="create",
        summary="create topics, in the tree and in Kafka",
        run=_create_topic,
        writes=True,
        timeout_seconds=30.0,
        details=(
            "The cluster's server must be allowed to create topics in Kafka: its config says\n"
            '[kafka] ceiling = ["create"]. Waits until Kafka has the topic; exit code 3 if it is\n'
            "still pending."
        ),
        arguments=(Argument("PATH", "path of the new topic", most=None, completes="path"),),
        options=(
            Option(("-p", "--partitions"), "partitions (default: the broker's)", "N"),
            Option(("--replication-factor",), "replicas (default: the broker's)", "N"),
            Option(
                ("--physical",),
                "its name in Kafka, exactly (default: the path below the mount, joined by dots)",
                "NAME",
            ),
            SET,
            Option(
                ("--if-not-exists",),
                "a topic that is there stays as it is, whatever its partitions and policies",
            ),
            Option(("--no-wait",), "do not wait for Kafka"),
            WAIT,
            PLAN,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir create /la/tracking/search/clicks", "search.clicks in Kafka"),
            ("kdir create --if-not-exists /la/tracking/search/clicks", "again, in a script"),
            (
                "kdir create -p 24 --physical clicks-v2 /la/tracking/search/clicks",
                "under that name",
            ),
            ("kdir create --plan /la/tracking/x", "dry run: is it possible, and under which name"),
        ),
    ),
    Verb(
        name="rm",
        summary="remove entries; a directory with -r",
        run=_remove,
        destroys=True,
        writes=True,
        timeout_seconds=30.0,
        details=(
            "Shows what would be removed and asks first; where there is no terminal to ask at, it\n"
            "needs --yes. Kafka's topics go too where the server's config says\n"
            '[kafka] ceiling = ["delete"]; elsewhere they stay, with their data. A directory that\n'
            "holds mounts is never removed."
        ),
        arguments=(_PATHS,),
        options=(
            Option(("-r", "--recursive"), "a directory, with all below it"),
            _ETAG,
            PLAN,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir rm /la/tracking/search/old-clicks", "a topic, or a link"),
            ("kdir rm -r /la/tracking/old", "a directory and all below it"),
            ("kdir rm -r --plan /la/tracking/old", "show what would be removed"),
        ),
    ),
    Verb(
        name="mv",
        summary="move or rename an entry within its cluster",
        run=_move,
        writes=True,
        details=(
            "Paths change; names in Kafka, data and ids stay. With a / behind NEW-PATH the entry\n"
            "goes into that directory under its own name."
        ),
        arguments=(
            Argument("PATH", "what to move", completes="path"),
            Argument("NEW-PATH", "where to; the directory above must exist", completes="path"),
        ),
        options=(
            Option(("--leave-link",), "leave a link behind at the old path"),
            _ETAG,
            PLAN,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir mv /la/tracking/clicks /la/tracking/search/clicks", "give a topic its place"),
            ("kdir mv --leave-link /la/tracking/ads /la/tracking/adverts", "old paths go on"),
            ("kdir mv /la/tracking/clicks /la/tracking/search/", "into a directory"),
            (
                "kdir mv /la/tracking/ads /la/public/ads --plan",
                "dry run: permissions, policies and quotas that would change",
            ),
        ),
    ),
    Verb(
        name="ln",
        summary="make a link to one or several paths",
        run=_link,
        writes=True,
        details=(
            "The targets are tried in order: a later target only if an earlier one is\n"
            "unreachable, not if it answers absent. --union merges them. Rights and policies are\n"
            "those of the targets. Producers stay with the first target unless --writes-follow is\n"
            "given."
        ),
        arguments=(
            Argument("TARGET", "path that the link leads to", most=None, completes="path"),
            Argument("PATH", "path of the new link", completes="path"),
        ),
        options=(
            Option(("--union",), "merge the targets; a name is the first target's that has it"),
            Option(("--fall-back-on-absent",), "try the next target also if one answers absent"),
            Option(("--writes-follow",), "producers follow a fallback, too"),
            PLAN,
        ),
        formats=ENTRY_FORMATS,
        examples=(
            ("kdir ln /la/tracking /ny/tracking /tracking", "la, or ny while la is unreachable"),
            ("kdir ln --union /la/tracking /ny/tracking /all/tracking", "both, merged"),
        ),
    ),
)
