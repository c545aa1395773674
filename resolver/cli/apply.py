"""The verb ``apply``: changes a tree to what YAML documents describe. Everything is read and
checked before the first change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from resolver import units
from resolver.access_requests import grant_text
from resolver.cli.clusters_below import (
    acl_calls_below,
    clusters_below,
    failure_text,
    plans_below,
    with_clusters_below,
)
from resolver.cli.create import PLAN, removal_text
from resolver.cli.entry_documents import FIELDS, Document, Grants, own_fields, read_documents
from resolver.cli.export import each_at_once, grants_at, is_mount
from resolver.cli.output import Column, Table
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.plan_output import print_change_plan
from resolver.cli.planned_write import is_same_topic, send_planned
from resolver.cli.policy_arguments import assign, field_of, forget
from resolver.cli.session import parse_path_argument
from resolver.cli.set import is_same_change
from resolver.confirmation import irreversible_effect, lock_out_effect
from resolver.errors import Absent, InvalidArgument, KdirError
from resolver.message_values import plain
from resolver.path import Path

if TYPE_CHECKING:
    from kdir.v1 import access_pb2, entry_pb2

    from resolver.cli.session import Session
    from resolver.client import Resolver
    from resolver.topic_location import TopicLocation

__all__ = ["VERBS"]

_EXIT_USAGE: Final = 2
_EXIT_CONFLICT: Final = 5


# -- what is to be changed -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Change:
    """One change of one entry, by one request."""

    where: str
    """The document or option that asks for the change."""
    action: str
    """create, set, grant, revoke or remove."""
    path: str
    kind: str
    what: str
    """What of the entry changes, for people."""
    method: str
    request: Any
    unfollowed: bool = False
    """The change is of a link itself, not of its target."""
    is_new: bool = False
    """The entry does not exist yet: less of it can be checked before."""
    plan: Any = None
    """Result of the dry run; None = none was made."""
    entry: Any = None
    """What is to be removed, as it was listed."""

    def send(self, session: Session, *, validate_only: bool) -> Any:
        """Sends the request.

        Raises:
            KdirError
        """
        request = type(self.request)()
        request.CopyFrom(self.request)
        request.path = self.path
        request.validate_only = validate_only
        if not validate_only and self.action in {"set", "remove"} and self.plan is not None:
            plan = self.plan.change if self.action == "set" else self.plan.plan
            request.etag = plan.etag  # the entry that was planned for
        follow = True if self.unfollowed else None
        return session.resolver.call(self.path, self.method, request, no_follow=follow)


class _Tree:
    """Current state of the entries that documents name."""

    def __init__(self, session: Session, documents: Sequence[Document]) -> None:
        self._session = session
        self.problems: list[str] = []
        """Differences between documents and the tree that ``apply`` does not change."""
        self.at: dict[tuple[tuple[str, ...], bool], entry_pb2.Entry] = {}
        new: list[Document] = []
        for is_topic in (False, True):
            chosen = [one for one in documents if one.is_topic == is_topic]
            for one, found in zip(chosen, self._find(chosen, is_topic=is_topic), strict=True):
                if found is not None:
                    self._take(one, found)
                elif one.kind == "mount":
                    self._differs(one, f"no mount; to make it: kdir mount {one.path}")
                else:
                    new.append(one)
        self._check_parents(documents, new)

    def _find(self, documents: Sequence[Document], *, is_topic: bool) -> list[TopicLocation | None]:
        found = self._locate([one.path for one in documents], "topic" if is_topic else "directory")
        return [None if one is None or (one.kind == "topic") != is_topic else one for one in found]

    def _locate(self, paths: Sequence[Path], prefer: str) -> list[TopicLocation | None]:
        """Returns what is at each path; None where nothing is.

        Raises:
            KdirError: the lookup of a path failed.
        """
        resolver: Resolver = self._session.resolver
        made: list[TopicLocation | None] = []
        for one in resolver.resolve_many(
            paths,
            prefer=prefer,
            no_follow=True,
            timeout_seconds=self._session.timeout_seconds + len(paths) / 1000,
        ):
            if isinstance(one, KdirError) and not isinstance(one, Absent):
                raise one
            made.append(None if isinstance(one, KdirError) else one)
        return made

    def _take(self, one: Document, found: TopicLocation) -> None:
        mounted = is_mount(found)
        if found.path != str(one.path):
            self._differs(one, f"a link leads to {found.path}: documents have canonical paths")
        elif mounted and one.kind == "mount":
            self._take_mount(one, found)
        elif mounted or found.kind != one.kind:
            kind = "mount" if mounted else found.kind
            self._differs(one, f"a {kind} in the tree, and a {one.kind} here")
        else:
            self.at[one.order] = found.entry
            name, wanted_name = found.entry.topic.physical_name, one.entry.topic.physical_name
            if wanted_name not in {"", name}:
                self._differs(one, f"physical_name: {name} in the tree, {wanted_name} here")

    def _take_mount(self, one: Document, found: TopicLocation) -> None:
        """Takes the directory that is mounted. If it cannot be resolved, takes the mount alone,
        unless the document has policies or grants.
        """
        self.at[one.order] = found.entry
        try:
            root = self._session.resolver.resolve(one.path, prefer="directory")
        except KdirError as error:
            if one.own is not None or one.grants is not None:
                raise
            self._session.missing(f"not compared: {one.where}: {one.path}: {error}")
            return
        self.at[one.order] = root.entry
        if one.cluster not in {"", root.cluster}:
            self._differs(one, f"a mount of {root.cluster}, not of {one.cluster}")

    def _differs(self, one: Document, how: str) -> None:
        self.problems.append(f"{one.where}: {one.path}: {how}")

    def _check_parents(self, documents: Sequence[Document], new: Sequence[Document]) -> None:
        made = {one.path for one in documents if one.kind in {"directory", "mount"}}
        above = sorted({one.path.parent for one in new} - made, key=lambda path: path.segments)
        for path, found in zip(above, self._locate(above, "directory"), strict=True):
            if found is None or found.kind not in {"directory", "mount"} or found.path != str(path):
                below = next(one for one in new if one.path.parent == path)
                self._differs(below, f"{path} is no directory, and in no document")


def _changes(
    session: Session, documents: Sequence[Document], tree: _Tree
) -> tuple[list[_Change], list[_Change]]:
    """Returns two lists of changes, each in order: those to make first, and those to make last.

    Raises:
        KdirError: the grants of an entry could not be read.
    """
    with_grants = [one for one in documents if one.grants is not None and one.order in tree.at]
    current: dict[tuple[tuple[str, ...], bool], Grants] = {}
    granted = each_at_once(
        session, with_grants, lambda one: grants_at(session, str(one.path), one.kind)
    )
    for one, grants in zip(with_grants, granted, strict=True):
        if isinstance(grants, KdirError):
            raise grants
        current[one.order] = grants or {}
    first: list[_Change] = []
    later: list[_Change] = []
    for one in documents:
        entry = tree.at.get(one.order)
        if entry is None:
            first.append(_creation(one))
        has = current.get(one.order, {})
        wanted = has if one.grants is None else one.grants
        more = [grant for text, grant in wanted.items() if text not in has]
        less = [grant for text, grant in has.items() if text not in wanted]
        if more:
            first.append(_grant_change(one, "grant", more, is_new=entry is None))
        early, late = _updates(one, entry)
        first += early
        # Revokes, and read_only, which stops all changes, come last, from the bottom up.
        later += [*late, *([_grant_change(one, "revoke", less)] if less else [])]
    return first, later[::-1]


def _creation(one: Document) -> _Change:
    from kdir.v1 import directory_pb2, entry_pb2

    entry = entry_pb2.Entry()
    entry.CopyFrom(one.entry)
    deferred = _deferred(one)
    if "closed" in deferred:
        entry.directory.closed = False
    if "read_only" in deferred:
        entry.policies.ClearField("read_only")
    request = directory_pb2.CreateEntryRequest(
        path=str(one.path), entry=entry, wait_until_active=one.is_topic
    )
    fields = [f"{key}={'(cleared)' if value is None else value}" for key, value in
              (one.own or {}).items() if key not in deferred]  # fmt: skip
    if one.kind == "link":
        fields.insert(0, f"targets={','.join(entry.link.targets)}")
    return _Change(
        one.where,
        "create",
        str(one.path),
        one.kind,
        ", ".join(fields),
        "DirectoryService.CreateEntry",
        request,
        is_new=True,
    )


def _deferred(one: Document) -> set[str]:
    """Returns the keys of a new entry that are set last: they hinder grants, and what is below."""
    own = one.own or {}
    return {key for key in ("closed", "read_only") if own.get(key) == "true"}


def _updates(one: Document, entry: entry_pb2.Entry | None) -> tuple[list[_Change], list[_Change]]:
    """Returns the changes of an entry's own settings: to make first, and to make last."""
    if one.kind == "link":
        return ([_link_update(one, entry)] if entry and one.entry.link != entry.link else []), []
    if one.own is None:
        return [], []
    wanted = dict(one.own)
    if entry is None:
        deferred = _deferred(one)
        sets = {key: value for key, value in wanted.items() if key in deferred}
        gone: list[str] = []
    else:
        has = own_fields(entry)
        # ``has`` omits armed aspects, so they are not unset; a document sets false to disarm.
        sets = {k: value for k, value in wanted.items() if k not in has or has[k] != value}
        # A topic made with another size than the inherited one has it as its own value.
        size = "partitions", str(one.entry.topic.partitions)
        gone = [key for key in has if key not in wanted and (key, has[key]) != size]
    late = {key: value for key, value in sets.items() if (key, value) == ("read_only", "true")}
    if late and entry is not None and sets.get("closed") == "true":
        # In one change: the caller may be shut out by the first of two.
        late["closed"] = "true"
    early = {key: value for key, value in sets.items() if key not in late}
    is_new = entry is None
    return (
        [_update(one, early, gone, is_new=is_new)] if early or gone else [],
        [_update(one, late, [], is_new=is_new)] if late else [],
    )


def _update(
    one: Document, sets: Mapping[str, str | None], gone: Sequence[str], *, is_new: bool
) -> _Change:
    from kdir.v1 import directory_pb2

    request = directory_pb2.UpdateEntryRequest(path=str(one.path), kind=one.kind_name)
    masks = []
    for key, value in sets.items():
        field = (
            forget(request.entry, key, "apply", clear=True)
            if value is None
            else assign(request.entry, f"{key}={value}", "apply")
        )
        masks.append(field.mask)
    masks += [field_of(key, "apply").mask for key in gone]
    request.update_mask.paths.extend(masks)
    what = [f"{key}={'(cleared)' if value is None else value}" for key, value in sets.items()]
    what += [f"unset {key}" for key in gone]
    return _Change(
        one.where,
        "set",
        str(one.path),
        one.kind,
        ", ".join(what),
        "DirectoryService.UpdateEntry",
        request,
        is_new=is_new,
    )


def _link_update(one: Document, entry: entry_pb2.Entry) -> _Change:
    from kdir.v1 import directory_pb2

    request = directory_pb2.UpdateEntryRequest(path=str(one.path), kind=one.kind_name)
    request.entry.link.CopyFrom(one.entry.link)
    names = [
        name
        for name in FIELDS["link"]
        if getattr(one.entry.link, name) != getattr(entry.link, name)
    ]
    request.update_mask.paths.extend(f"link.{name}" for name in names)
    shown = plain(one.entry.link)
    what = [
        f"targets={','.join(one.entry.link.targets)}"
        if name == "targets"
        else f"{name}={str(shown.get(name, False)).rpartition('_')[2].lower()}"
        for name in names
    ]
    return _Change(
        one.where,
        "set",
        str(one.path),
        one.kind,
        ", ".join(what),
        "DirectoryService.UpdateEntry",
        request,
        unfollowed=True,
    )


def _grant_change(
    one: Document, action: str, grants: Sequence[access_pb2.Grant], *, is_new: bool = False
) -> _Change:
    from kdir.v1 import access_pb2

    kind: Any = one.kind_name
    fields = {"path": str(one.path), "kind": kind, "grants": grants}
    adds = action == "grant"
    request = (
        access_pb2.AddGrantsRequest(**fields) if adds else access_pb2.RemoveGrantsRequest(**fields)
    )
    method = f"AccessService.{'Add' if adds else 'Remove'}Grants"
    what = "; ".join(map(grant_text, grants))
    return _Change(one.where, action, str(one.path), one.kind, what, method, request, is_new=is_new)


def _removals(
    session: Session, documents: Sequence[Document], below: Sequence[str]
) -> list[_Change]:
    """Returns the removals of entries that are below these paths and in no document; a directory is
    removed with all that is below it.

    Raises:
        UsageError: no document is of the directory at a path.
        KdirError: what is below a path could not be listed in full.
    """
    from kdir.v1 import directory_pb2

    named = {one.order for one in documents}
    named |= {(one.path.segments[:length], False) for one in documents for length in
              range(len(one.path))}  # fmt: skip
    containers = {one.path for one in documents if one.kind in {"directory", "mount"}}
    made: dict[str, _Change] = {}
    for text in below:
        top = parse_path_argument(text).path
        if top not in containers:
            raise UsageError(f"--prune {text}: no document is of this directory", verb="apply")
        listing = session.resolver.list(top, recursive=True)
        found = [one.entry for one in listing]
        if listing.not_listed:
            raise listing.not_listed[0].error
        mounts = {Path.of_entry(one.path) for one in found if one.HasField("mount")}
        kept = named.union(
            (path.segments[:length], False) for path in mounts for length in range(len(path) + 1)
        )
        # Below a mount without a document, entries without a document are kept.
        gone = {path.segments for path in mounts - containers}
        for entry in found:
            segments, kind = Path.of_entry(entry.path).segments, entry.WhichOneof("kind") or ""
            within = any(segments[:length] in gone for length in range(len(segments)))
            if (segments, kind == "topic") in kept or within:
                continue
            if kind == "directory":
                gone.add(segments)
            kind_name: Any = f"ENTRY_KIND_{kind.upper()}"
            request = directory_pb2.DeleteEntryRequest(
                path=entry.path, kind=kind_name, recursive=kind == "directory"
            )
            made[f"{kind} {entry.path}"] = _Change(
                f"--prune {text}",
                "remove",
                entry.path,
                kind,
                "",
                "DirectoryService.DeleteEntry",
                request,
                entry=entry,
            )
    return list(made.values())


# -- checking and doing ----------------------------------------------------------------------------


def _apply(session: Session, arguments: Arguments) -> int:
    documents = read_documents(arguments.many("FILE"))
    tree = _Tree(session, documents)
    removals = _removals(session, documents, arguments.many("prune"))
    if tree.problems:
        for problem in tree.problems:
            session.out.note(f"differs: {problem}", "bad")
        session.out.note("nothing was changed", "warn")
        return _EXIT_CONFLICT
    first, later = _changes(session, documents, tree)
    sizes = _sizes_that_differ(documents, tree)
    for text in sizes:
        session.out.note(f"differs: {text}", "warn")
    code = _EXIT_CONFLICT if sizes else 0
    changes = [*first, *removals, *later]
    if not changes:
        session.out.note("nothing to do")
        return code
    checked = _checked(session, changes, below=arguments.flag("plan"))
    if arguments.flag("plan"):
        _show_plan(session, checked)
        return code
    approvals = _Approvals(session)
    approved = [one for one in checked if approvals.approve(one)]
    for one in approved:
        if one.action == "set" and one.is_new:
            one.request.allow_lock_out = arguments.flag("yes")
    return _run(session, approved, approvals) or code


def _sizes_that_differ(documents: Sequence[Document], tree: _Tree) -> list[str]:
    """Returns the existing topics with another size than in their documents: ``kdir grow`` changes
    the partitions, and Kafka's own tools the replicas.
    """
    found = []
    for one in documents:
        entry = tree.at.get(one.order)
        if entry is None or not one.is_topic:
            continue
        for name in ("partitions", "replication_factor"):
            has, wanted = getattr(entry.topic, name), getattr(one.entry.topic, name)
            if has and wanted and has != wanted:
                grows = name == "partitions" and wanted > has
                hint = f"; to grow it: kdir grow {one.path} --to {wanted}" if grows else ""
                found.append(
                    f"{one.where}: {one.path}: {name}: {has} in Kafka, {wanted} here{hint}"
                )
    return found


def _checked(session: Session, changes: Sequence[_Change], *, below: bool) -> list[_Change]:
    """Makes a dry run of each change that can have one; returns the changes with their plans.

    A refusal is no error if an earlier change of this run is of the same entry or of one above it,
    and so may make the change possible. An invalid value always is one.

    Raises:
        KdirError: a change would be refused; the first one is named on stderr.
    """
    first: dict[tuple[str, ...], int] = {}
    for at, one in enumerate(changes):
        first.setdefault(Path.parse(one.path).segments, at)

    def above(one: _Change) -> list[int]:
        """Returns the index of the first change at each path above this one's, and at its own."""
        segments = Path.parse(one.path).segments
        every = (first.get(segments[:length]) for length in range(len(segments) + 1))
        return [at for at in every if at is not None]

    def check(one: _Change) -> _Change:
        if one.is_new:
            if one.action != "create":
                return one
            new = [each for at in above(one) if (each := changes[at]).is_new]
            if new and new[0].path != one.path:  # the directory above it is new, too
                _check_values(session, one, Path.parse(new[0].path).parent)
                return one
        return replace(one, plan=_plan_of(session, one, below=below))

    made: list[_Change] = []
    for at, answer in enumerate(each_at_once(session, changes, check)):
        one = changes[at]
        depends = any(other < at for other in above(one))
        if isinstance(answer, _Change):
            if depends and isinstance(answer.plan, _Plan):
                answer.plan.change.locks_out = False  # planned again after those before it
            made.append(answer)
            continue
        if isinstance(answer, InvalidArgument) or not depends:
            what = f"{one.action} {one.kind} {one.path}"
            session.out.note(f"refused: {one.where}: {what}; nothing was changed", "bad")
            raise answer
        made.append(one)
    return made


def _check_values(session: Session, one: _Change, nearest: Path) -> None:
    """Checks the values of an entry whose directory does not exist yet, by a dry run in the
    nearest directory that does; ignores all other errors of the dry run.

    Raises:
        InvalidArgument: a value is invalid.
    """
    near = replace(one, path=str(nearest.child(Path.parse(one.path).name)))
    try:
        near.send(session, validate_only=True)
    except InvalidArgument:
        raise
    except KdirError:
        return


def _plan_of(session: Session, one: _Change, *, below: bool) -> Any:
    """Returns the result of a dry run of a change, with what the clusters below add.

    Raises:
        KdirError: the change would be refused.
    """
    answer = one.send(session, validate_only=True)
    if one.action in {"create", "remove"}:
        return answer
    if one.action == "set" and not one.unfollowed:
        clusters = plans_below(session, one.path, answer.plan.policies)
    elif below and one.action in {"grant", "revoke"}:
        changed = answer.added if one.action == "grant" else answer.removed
        source = one.path if one.action == "revoke" else ""
        clusters = acl_calls_below(session, clusters_below(session, one.path), changed, source)
    else:
        clusters = []
    return _Plan(
        with_clusters_below(answer.plan, clusters),
        with_clusters_below(answer.plan, [each for each in clusters if not each.error]),
        tuple(failure_text(each.cluster, each.error) for each in clusters if each.error),
        tuple(each.cluster for each in clusters if each.error),
        answer,
    )


class _Plan(NamedTuple):
    """Result of a dry run, by the owner and by the clusters below."""

    change: Any
    """A ``ChangePlan``."""
    known: Any
    """The ``ChangePlan`` without the clusters whose plans are not known."""
    unknown: tuple[str, ...]
    """Why the plans of some clusters below are not known."""
    clusters: tuple[str, ...]
    """The names of those clusters."""
    answer: Any
    """The owner's answer."""


class _Approvals:
    """Approvals of what cannot be undone: each effect is asked for once."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._given: set[tuple[str, str]] = set()

    def approve(self, one: _Change) -> bool:
        """Returns whether a change may be made; asks for approval of its irreversible effects.

        Raises:
            UsageError: there is no ``--yes``, and nobody to ask.
        """
        effects = list(_irreversible_effects(one))
        for effect in effects:
            if effect not in self._given and not self._session.approve(*effect):
                self._session.out.note(f"unchanged: {one.path}")
                return False
            self._given.add(effect)
        if effects and isinstance(one.plan, _Plan) and one.plan.change.locks_out:
            one.request.allow_lock_out = True
        return True


def _irreversible_effects(one: _Change) -> Iterator[tuple[str, str]]:
    """Yields the irreversible effects of a planned change, with their consequences."""
    if one.action == "remove":
        yield f"remove {_removed(one)}", ""
    elif one.action == "set" and isinstance(one.plan, _Plan):
        if effect := irreversible_effect(one.plan.known, one.plan.clusters):
            yield f"{effect[0]} (by {one.path})", effect[1]
        if effect := lock_out_effect(one.path, one.plan.change):
            yield effect


def _removed(one: _Change) -> str:
    if one.plan is None:
        return f"{one.kind} {one.path}, with all that is below it by then"
    return removal_text(parse_path_argument(one.path), one.kind, one.plan)


_COLUMNS: Final = (Column("ACTION"), Column("KIND"), Column("PATH"), Column("WHAT"))


def _show(session: Session, table: Table, one: _Change) -> None:
    out = session.out
    if out.structured:
        record: dict[str, Any] = {
            "action": one.action,
            "kind": one.kind,
            "path": one.path,
            "what": one.what,
        }
        if one.plan is not None and one.action != "create":
            change = one.plan.plan if one.action == "remove" else one.plan.change
            record["plan"] = plain(change)
        out.record(record)
    else:
        table.rows([[one.action, one.kind, one.path, one.what or "-"]])


def _show_plan(session: Session, changes: Sequence[_Change]) -> None:
    out = session.out
    table = Table(out, _COLUMNS)
    for one in changes:
        _show(session, table, one)
    for one in changes:
        if one.action == "remove":
            out.note(f"would remove {_removed(one)}", "bad")
        if not isinstance(one.plan, _Plan):
            continue
        change = one.plan.change
        if out.human and not out.structured and change.ByteSize():
            out.note(f"{one.action} {one.path}:", "faint")
            is_unknown = bool(one.plan.unknown)
            print_change_plan(out, change, recorded=True, is_cluster_unknown=is_unknown)
        for what, consequence in _irreversible_effects(one):
            out.note(f"would {what}. {consequence}", "bad")
        if calls := len(change.kafka_calls) + change.kafka_calls_omitted:
            least = "at least " if change.incomplete or change.caller_view else ""
            out.note(f"{one.action} {one.path}: {least}{units.plural(calls, 'call')} to Kafka")
        for text in one.plan.unknown:
            session.missing(f"not known: {text}")
    out.note(f"dry run: {units.plural(len(changes), 'change')}; nothing was changed")


def _run(session: Session, changes: Sequence[_Change], approvals: _Approvals) -> int:
    """Makes the changes one by one, up to the first that fails; returns the exit code."""
    from resolver.cli.error_hints import explain

    table, every = Table(session.out, _COLUMNS), len(changes)
    done, code = 0, 0
    made: list[Path] = []
    try:
        for one in changes:
            planned = _planned_now(session, one, made)
            if planned is not one and not approvals.approve(planned):
                every -= 1
                continue
            answer = _send_planned(session, planned)
            done += 1
            made.append(Path.parse(one.path))
            _show(session, table, replace(one, plan=None))
            _note_pending(session, one, answer)
    except KdirError as error:
        explain(error, session)
        code = error.exit_code
    except UsageError as refused:
        session.out.note(f"error: {refused.message}", "bad")
        code = _EXIT_USAGE
    finally:
        if done == every:
            session.out.note(f"done: {units.plural(done, 'change')}")
        else:
            for one in changes[len(changes) - every + done :]:
                session.out.note(f"not done: {one.action} {one.kind} {one.path}", "warn")
            session.out.note(
                f"done: {done:,} of {units.plural(every, 'change')}; "
                "the same command does the rest",
                "warn",
            )
    return code


def _planned_now(session: Session, one: _Change, made: Sequence[Path]) -> _Change:
    """Returns a change with its current plan: after earlier changes above or below it, it may do
    more than it would have done alone.
    """
    path = Path.parse(one.path)
    related = any(path.is_prefix_of(each) or each.is_prefix_of(path) for each in made)
    if one.action != "set" or one.is_new or one.unfollowed or not (related or one.plan is None):
        return one
    return replace(one, plan=_plan_of(session, one, below=False))


def _send_planned(session: Session, one: _Change) -> Any:
    """Makes a change; a planned one only if the entry is still the one that was planned for.

    Raises:
        EtagMismatch: the entry was changed since.
        KdirError
    """
    return send_planned(
        one,
        lambda now: now.send(session, validate_only=False),
        lambda: replace(one, plan=_plan_of(session, one, below=False)),
        lambda now: _is_same(session, one, now),
    )


def _is_same(session: Session, planned: _Change, now: _Change) -> bool:
    """True if only what servers record of a topic has changed since the plan."""
    if planned.action == "set":
        return is_same_change(planned.plan.answer, now.plan.answer)
    return _removed(planned) == _removed(now) and is_same_topic(session, planned.entry)


def _note_pending(session: Session, one: _Change, answer: Any) -> None:
    from kdir.v1 import entry_pb2

    if one.action != "create" or one.kind != "topic":
        return
    topic = answer.entry.topic
    if topic.provision == entry_pb2.PROVISION_PENDING:
        session.missing(
            f"pending: Kafka has not created {topic.physical_name} yet; "
            f"follow it with kdir stat {one.path}"
        )


VERBS: Final = (
    Verb(
        name="apply",
        summary="make a tree as YAML documents describe it",
        run=_apply,
        writes=True,
        destroys=True,
        timeout_seconds=30.0,
        details=(
            "Creates what is missing, parents first. Where a document has policies, the entry's\n"
            "own become equal to them: keys that are not there are unset; grants likewise. What a\n"
            "document has no field for stays. All is checked before the first change, and what\n"
            "cannot be undone is asked for first. Mounts, and the size of topics that exist, are\n"
            "compared only: a difference is exit code 5. Nothing is removed without --prune, and\n"
            "nothing is armed: kdir arm. At the first error it stops, and lists what is not done."
        ),
        arguments=(Argument("FILE", "of YAML documents; - is stdin", most=None, completes="file"),),
        options=(
            PLAN,
            Option(
                ("--prune",),
                "remove what is below this directory and in no document; asks first; repeatable",
                "PATH",
                repeated=True,
                completes="path",
            ),
        ),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir apply search.yaml --plan", "dry run: what would be changed"),
            ("kdir apply search.yaml", "make it so; again: nothing to do"),
            (
                "kdir apply search.yaml --prune /la/tracking/search",
                "and remove what the file does not name",
            ),
        ),
    ),
)
