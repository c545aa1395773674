"""Verbs for access rights: ``grant``, ``revoke``, ``grants``, ``check``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from resolver import units
from resolver.access_requests import grant_text, grants_of
from resolver.cli.clusters_below import (
    ClusterBelow,
    acl_calls_below,
    clusters_below,
    failure_text,
    with_clusters_below,
)
from resolver.cli.create import PLAN
from resolver.cli.kafka_wait import WAIT, clusters_at, wait_for_kafka, wait_seconds
from resolver.cli.output import Column, Table
from resolver.cli.parser import Argument, Arguments, Option, UsageError, Verb
from resolver.cli.plan_output import print_change_plan
from resolver.cli.session import parse_path_argument
from resolver.cli.streams import chosen_cluster, identify_cluster
from resolver.errors import KdirError
from resolver.message_values import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kdir.v1 import access_pb2

    from resolver.cli.session import Session

__all__ = ["VERBS"]

_EXIT_DENIED: Final = 4
_KINDS: Final = ("topic", "group", "transactional-id", "cluster")


def _grant(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import access_pb2

    answer = _put(session, arguments, "AddGrants", access_pb2.AddGrantsRequest())
    _changed(session, arguments, answer, answer.added, "granted")
    _wait(session, arguments, answer, answer.added)
    return 0


def _revoke(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import access_pb2

    answer = _put(session, arguments, "RemoveGrants", access_pb2.RemoveGrantsRequest())
    _changed(session, arguments, answer, answer.removed, "removed")
    if not answer.removed:
        where = parse_path_argument(arguments.one("PATH"))
        for one in answer.grants:
            session.out.note(f"on {where}: {grant_text(one)}")
        if not answer.grants:
            session.out.note(f"no grants on {where} itself; inherited ones: kdir check … --explain")
    _wait(session, arguments, answer, answer.removed)
    return 0


def _wait(
    session: Session, arguments: Arguments, answer: Any, changed: Sequence[access_pb2.Grant]
) -> None:
    """With ``--wait``, waits until Kafka has the principal's ACLs as granted, in each cluster that
    the grants apply to.
    """
    if not arguments.flag("wait") or arguments.flag("plan"):
        return
    where, principal = parse_path_argument(arguments.one("PATH")), arguments.one("PRINCIPAL")
    owner = session.resolver.owner_of(where.path)
    names = {one.principal for one in (*changed, *_desired_config(arguments))}
    done = wait_for_kafka(
        session,
        "acls",
        clusters_at(session, owner.cluster, str(owner.path), directory=where.directory),
        lambda call: call.acl.principal in names,
        answer.token if changed else "",
        wait_seconds(arguments),
    )
    if done:
        session.out.note(
            f"done: Kafka has the ACLs of {principal} as granted, where they are armed"
        )


def _put(session: Session, arguments: Arguments, method: str, request: Any) -> Any:
    """Fills in the request and sends it to the owner of PATH."""
    where = parse_path_argument(arguments.one("PATH"))
    request.path, request.kind = str(where.path), where.kind
    request.grants.extend(_desired_config(arguments))
    request.validate_only = arguments.flag("plan")
    return session.resolver.call(where.path, f"AccessService.{method}", request)


def _desired_config(arguments: Arguments) -> list[access_pb2.Grant]:
    resource, name = _resource(arguments)
    return grants_of(
        arguments.one("PRINCIPAL"),
        [part for part in arguments.one("OPERATIONS").split(",") if part],
        deny=arguments.flag("deny"),
        host=_host(arguments),
        resource=resource,
        name=name,
    )


def _host(arguments: Arguments) -> str:
    """Returns the address of ``--host``; empty without the option, for every host."""
    host = arguments.one("host")
    if arguments.flag("host") and not host.strip():
        # Such as an unset "$HOST" in a script. With the option, only '*' means every host.
        raise UsageError("--host '': an address was expected, or '*' for every host")
    return host


def _resource(arguments: Arguments) -> tuple[str, str]:
    given = [kind for kind in _KINDS[1:] if arguments.flag(kind)]
    if len(given) > 1:
        both = " and ".join(f"--{kind}" for kind in given)
        raise UsageError(f"{both}: one of them", verb=arguments.verb.name)
    if not given:
        return "topic", ""
    return given[0], arguments.one(given[0])


def _changed(
    session: Session,
    arguments: Arguments,
    answer: Any,
    changed: Sequence[access_pb2.Grant],
    what: str,
) -> None:
    out, planned = session.out, arguments.flag("plan")
    source, below, unknown = _clusters_below(session, arguments) if changed else ("", [], "")
    if out.structured:
        out.record(plain(answer))
    else:
        out.lines(grant_text(one) for one in changed)
        answered = (
            f"{f'would be {what}' if planned else what} at "
            f"{parse_path_argument(arguments.one('PATH'))}"
        )
        topics = units.plural(answer.topic_count + sum(one.topics for one in below), "topic")
        grants = units.plural(len(changed), "grant")
        least = "at least " if answer.plan.caller_view else ""
        about = f"{answered}: {grants}, for {least}{topics} there and below"
        about += f", in {len(below) + 1} clusters" if below else ""
        none = "already granted" if what == "granted" else "no such grant"
        out.note(about if changed else f"no change: {none}")
    if unknown:
        session.missing(f"not known: the clusters below: {unknown}")
    if not planned:
        return
    removed_from = "" if what == "granted" else source
    plans = acl_calls_below(session, below, changed, removed_from)
    not_known = [failure_text(one.cluster, one.error) for one in plans if one.error]
    whole = with_clusters_below(answer.plan, plans)
    print_change_plan(out, whole, recorded=True, is_cluster_unknown=bool(not_known))
    for text in not_known:
        session.missing(f"not known: {text}")


def _clusters_below(session: Session, arguments: Arguments) -> tuple[str, list[ClusterBelow], str]:
    """Returns the canonical path, the clusters that inherit its grants, and, if those are not
    known, the reason (else empty).
    """
    try:
        owner = session.resolver.owner_of(parse_path_argument(arguments.one("PATH")).path)
        return str(owner.path), clusters_below(session, str(owner.path)), ""
    except KdirError as error:
        return "", [], error.message


# -- reading ---------------------------------------------------------------------------------------


def _grants(session: Session, arguments: Arguments) -> int:
    from kdir.v1 import access_pb2

    where = parse_path_argument(arguments.one("PATH"))
    request = access_pb2.ListGrantsRequest(path=str(where.path), kind=where.kind)
    answer: access_pb2.ListGrantsResponse = session.resolver.call(
        where.path, "AccessService.ListGrants", request
    )
    out = session.out
    if out.structured:
        unconfirmed = session.unconfirmed_fields()
        for one in answer.grants:
            out.record({**plain(one), **unconfirmed})
        return 0
    if not answer.grants:
        out.note(f"no grants on {where} itself; inherited ones: kdir check … --explain")
    Table(out, _COLUMNS).rows(
        [
            [
                one.principal,
                access_pb2.Permission.Name(one.permission).removeprefix("PERMISSION_"),
                access_pb2.Operation.Name(one.operation).removeprefix("OPERATION_"),
                access_pb2.ResourceType.Name(one.resource_type).removeprefix("RESOURCE_TYPE_"),
                one.resource_name or "-",
                one.host,
            ]
            for one in answer.grants
        ]
    )
    return 0


def _check(session: Session, arguments: Arguments) -> int:
    if arguments.flag("any"):
        return _check_any(session, arguments)
    if not arguments.one("PATH"):
        raise UsageError("PATH is required: the entry to check, or --any KIND", verb="check")
    where = parse_path_argument(arguments.one("PATH"))
    resource, name = _resource(arguments)
    found = session.resolver.check(
        where.path,
        arguments.one("PRINCIPAL"),
        arguments.one("OPERATION"),
        host=_host(arguments),
        resource=resource,
        name=name,
        prefer=where.prefer,
        explain=arguments.flag("explain"),
    )
    out = session.out
    if out.structured:
        # ``allowed`` is printed also if false, which proto JSON omits: scripts read it.
        unconfirmed = session.unconfirmed_fields()
        out.record({"allowed": found.allowed, **plain(found.response), **unconfirmed})
    else:
        out.line(found.message)
        for level in found.response.levels:
            closed = " (closed)" if level.closed else ""
            inherited = " (inherited)" if level.inherited else ""
            out.line(f"  {level.path}{closed}{inherited}")
            for seen in level.grants:
                out.line(f"    {grant_text(seen.grant)}: {seen.message}")
    return 0 if found.allowed else _EXIT_DENIED


def _check_any(session: Session, arguments: Arguments) -> int:
    kind = arguments.one("any")
    chosen = chosen_cluster(session, arguments, by_path=True)
    path = arguments.one("PATH") or chosen.mount
    allowed = session.resolver.authorize_any(
        arguments.one("PRINCIPAL"),
        arguments.one("OPERATION"),
        kind,
        host=_host(arguments),
        path=parse_path_argument(path).path if path else "",
    )
    out, asked = session.out, identify_cluster(session, chosen)
    if not path and asked.mount:
        # The answer has no authority. A resolution has, and so the session notes an unconfirmed
        # mount.
        with suppress(KdirError):
            session.resolver.owner_of(asked.mount)
    if out.structured:
        out.record({"allowed": allowed, **session.unconfirmed_fields(chosen.requested)})
    else:
        out.line("allowed" if allowed else "denied")
        cluster = asked.name or "the queried cluster"
        out.note(f"on any {kind} of cluster {cluster}, not only at or below a path", "faint")
    return 0 if allowed else _EXIT_DENIED


_COLUMNS: Final = (
    Column("PRINCIPAL"),
    Column("PERMISSION"),
    Column("OPERATION"),
    Column("RESOURCE TYPE"),
    Column("RESOURCE NAME"),
    Column("HOST"),
)
_WHO: Final = Argument(
    "PRINCIPAL", "such as alice (User:alice), User:CN=app-1, or '*' for all principals"
)
_PATH: Final = Argument("PATH", "the entry, with everything below it", completes="path")
_OPERATIONS: Final = Argument(
    "OPERATIONS", "such as read or read,describe-configs; all is all", completes="operations"
)
_ABOUT: Final = (
    Option(("--host",), "only from this address (default: from every host)", "ADDRESS"),
    Option(("--group",), "consumer groups: a name, '*', or 'prefix*'", "NAME"),
    Option(("--transactional-id",), "transactional ids, in the same form", "NAME"),
    Option(("--cluster",), "the clusters at and below PATH"),
)
_DENY: Final = Option(("--deny",), "deny; overrides every allow on the path")

VERBS: Final = (
    Verb(
        name="grant",
        summary="allow or deny operations on an entry and everything below it",
        run=_grant,
        writes=True,
        details=(
            "Operations are Kafka's; read, write, delete and alter imply describe. A deny at any\n"
            "level of the path overrides every allow. Grants apply across mounts. Requests that\n"
            "match no grant are decided by the servers' setting (access = open or enforce)."
        ),
        arguments=(_WHO, _OPERATIONS, _PATH),
        options=(_DENY, *_ABOUT, PLAN, WAIT),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir grant alice read /la/tracking/search", "consume there and below"),
            ("kdir grant alice read /la/tracking/search --group 'search-*'", "with such groups"),
            ("kdir grant bob all /la/tracking/secret --deny", "never, whatever is allowed above"),
            ("kdir grant '*' read /la/tracking --plan", "dry run: who gains what, and where"),
        ),
    ),
    Verb(
        name="revoke",
        summary="remove grants, exactly as they were added",
        run=_revoke,
        writes=True,
        arguments=(_WHO, _OPERATIONS, _PATH),
        options=(_DENY, *_ABOUT, PLAN, WAIT),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir revoke alice read /la/tracking/search", "undo that grant"),
            ("kdir revoke bob all /la/tracking/secret --deny", "no longer forbidden"),
        ),
    ),
    Verb(
        name="grants",
        summary="the grants set on an entry itself",
        run=_grants,
        arguments=(Argument("PATH", "of the entry", completes="path"),),
        formats=("table", "json", "yaml"),
        examples=(("kdir grants /la/tracking/search", "its own grants"),),
    ),
    Verb(
        name="check",
        summary="whether a principal may do something, and which grant decides",
        run=_check,
        details=(
            "Exit code 4 if denied. The path need not exist. --any: is the operation allowed on\n"
            "at least one resource of a type (KIP-679), in the whole cluster of PATH (not only\n"
            "below it), or of the first server."
        ),
        arguments=(
            _WHO,
            Argument("OPERATION", "such as read", completes="operations"),
            Argument("PATH", "of the entry", least=0, completes="path"),
        ),
        options=(
            *_ABOUT,
            Option(("--explain",), "show every grant evaluated, level by level"),
            Option(("--any",), "on any resource of this type", "KIND", choices=_KINDS),
        ),
        formats=("table", "json", "yaml"),
        examples=(
            ("kdir check alice read /la/tracking/search/clicks --explain", "why, level by level"),
            ("kdir check alice create /la --cluster", "the cluster itself, not a topic"),
            ("kdir check alice write --any topic", "on at least one topic"),
        ),
    ),
)
