"""Decodes replies of servers to the values of ``resolver.resolution``.

An undecodable reply (a mount that is not a path, an empty outcome) becomes a ``Lame`` error: its
sender is not a usable directory server.
"""

from __future__ import annotations

from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Final

from kdir.v1 import entry_pb2, resolve_pb2

from resolver import errors
from resolver.error_status import from_outcome
from resolver.path import Path
from resolver.printable import cut_shown, printable
from resolver.resolution.answer_lifetimes import cap_lifetime, cap_negative_lifetime
from resolver.resolution.values import (
    Absent,
    Answer,
    AskedBecause,
    ErrorAnswer,
    LinkMode,
    Outcome,
    Referral,
    Reply,
    Rewrite,
    Sender,
)
from resolver.revision_token import NOTHING_READ, ReadPositions, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "decode_batch",
    "decode_reply",
    "decode_sender",
]

_WAYS: Final = {
    resolve_pb2.REFERRAL_KIND_DOWN: AskedBecause.DOWN,
    resolve_pb2.REFERRAL_KIND_UP: AskedBecause.UP,
    resolve_pb2.REFERRAL_KIND_DIRECT: AskedBecause.DIRECT,
}
_MAX_NAME: Final = 256  # characters of ids and names, which are only compared and shown
_MAX_ENDPOINT: Final = 300
_REMEMBERED_TOKENS: Final = 256
"""Most parsed tokens that are cached: a server sends the same token until its tree changes."""


def decode_reply(response: resolve_pb2.ResolveResponse) -> Reply:
    """Returns the reply to one query.

    Raises:
        Lame: the reply cannot be decoded.
    """
    return Reply(decode_sender(response.authority), _outcome(response.outcome))


def decode_batch(
    response: resolve_pb2.BatchResolveResponse, paths: Sequence[Path]
) -> Iterator[Reply | errors.KdirError]:
    """Yields the replies to ``paths``, in order; the error of one path is its reply.

    Raises:
        Lame: the numbers of outcomes and paths differ.
    """
    if len(response.outcomes) != len(paths):
        raise errors.Lame(f"gave {len(response.outcomes)} outcomes for {len(paths)} paths")
    senders: list[Sender | errors.Lame] = []
    for authority in response.authorities:
        try:
            senders.append(decode_sender(authority))
        except errors.Lame as error:
            senders.append(error)
    everybody = NOTHING_READ
    for one in senders:
        everybody = everybody.joined(one.read) if isinstance(one, Sender) else everybody
    for path, outcome in zip(paths, response.outcomes, strict=True):
        kind = outcome.WhichOneof("kind")
        if kind == "error":
            yield from_outcome(outcome.error)
            continue
        index = outcome.resolution.authority_index if kind == "resolution" else None
        who = _whose(senders, path, index)
        if index is None and len(senders) > 1 and isinstance(who, Sender):
            who = who._replace(behind=everybody)  # sender not named: earliest positions of all
        try:
            yield who if isinstance(who, errors.Lame) else Reply(who, _outcome(outcome))
        except errors.Lame as error:
            yield error


def _whose(
    senders: list[Sender | errors.Lame], path: Path, index: int | None
) -> Sender | errors.Lame:
    """Returns the sender of an outcome. Only a resolution names its sender; for other outcomes it
    is the one whose mount is the deepest at or above the path.
    """
    if not senders:
        return errors.Lame("answer without authority")
    if len(senders) == 1 and not index:
        return senders[0]
    if index is not None:
        return senders[index] if index < len(senders) else errors.Lame(f"names authority {index}")
    able = [s for s in senders if isinstance(s, Sender) and s.mount.is_prefix_of(path)]
    return max(able, key=lambda one: len(one.mount), default=senders[0])


def decode_sender(authority: resolve_pb2.Authority) -> Sender:
    """Returns the sender of an answer.

    Raises:
        Lame: ``authority`` is empty or cannot be decoded.
    """
    cluster = authority.cluster
    if not cluster.cluster_id:
        raise errors.Lame("its answer names no cluster")
    for field in ("age_seconds", "unconfirmed_seconds"):
        seconds = getattr(authority, field)
        if not isfinite(seconds):
            raise errors.Lame(f"{field}: found {seconds}; expected a finite number")
    return Sender(
        cluster_id=_ascii(cluster.cluster_id, "cluster_id"),
        mount=_required(cluster.mount, "mount"),
        cluster=_text(cluster.cluster),
        epoch=cluster.epoch,
        server=_text(authority.server),
        incarnation=_ascii(authority.incarnation, "incarnation"),
        revision=authority.revision,
        stale=authority.stale,
        age_seconds=max(0.0, authority.age_seconds),
        sealed=authority.sealed,
        payload=authority,
        behind=_read_positions(authority.token),
    )


@lru_cache(_REMEMBERED_TOKENS)
def _read_positions(token: str) -> ReadPositions:
    """Returns the positions in a server's token: its own, and those of the servers that it called
    for the client; incomplete if the token is invalid.
    """
    try:
        return ReadPositions(Token.parse(token).positions) if token else NOTHING_READ
    except errors.InvalidToken:
        return NOTHING_READ.incomplete()


def _outcome(outcome: resolve_pb2.Outcome) -> Outcome:
    match outcome.WhichOneof("kind"):
        case "resolution":
            return _answer(outcome.resolution)
        case "referral":
            return _referral(outcome.referral)
        case "rewrite":
            return _rewrite(outcome.rewrite)
        case "absent":
            absent = outcome.absent
            nearest = _optional(absent.nearest_directory, "nearest directory")
            return Absent(nearest, cap_negative_lifetime(absent.lifetime_seconds))
        case "error":
            return ErrorAnswer(from_outcome(outcome.error))
        case _:
            raise errors.Lame("answered nothing")


def _answer(resolution: resolve_pb2.Resolution) -> Answer:
    path = _required(resolution.entry.path, "canonical path", Path.of_entry)
    if resolution.entry.WhichOneof("kind") is None:
        raise errors.Lame(f"its answer has no outcome for {path}")
    return Answer(path, cap_lifetime(resolution.lifetime_seconds), resolution)


def _referral(referral: resolve_pb2.Referral) -> Referral:
    way = _WAYS.get(referral.kind, AskedBecause.START)
    return Referral(
        way=way,
        mount=(_optional if way is AskedBecause.UP else _required)(referral.mount, "mount"),
        # An overlong endpoint is cut here, and refused when it is parsed.
        endpoints=tuple(endpoint[:_MAX_ENDPOINT] for endpoint in referral.endpoints[:100]),
        cluster_id=_text(referral.cluster_id),
        cluster=_text(referral.cluster),
        epoch=referral.epoch,
        lifetime_seconds=cap_lifetime(referral.lifetime_seconds),
        age_seconds=referral.age_seconds,
    )


def _rewrite(rewrite: resolve_pb2.Rewrite) -> Rewrite:
    if not rewrite.paths:
        raise errors.Lame(f"link {_text(rewrite.link)} without targets")
    union = rewrite.mode == entry_pb2.LINK_MODE_UNION
    return Rewrite(
        link=_required(rewrite.link, "link"),
        paths=tuple(_required(path, "target") for path in rewrite.paths[:100]),
        mode=LinkMode.UNION if union else LinkMode.FIRST,
        fall_back_on_absent=rewrite.fall_back_on_absent,
        writes_follow=rewrite.writes == entry_pb2.LINK_WRITES_FOLLOW,
        site_link=rewrite.site_link,
        lifetime_seconds=cap_lifetime(rewrite.lifetime_seconds),
    )


def _required(text: str, what: str, parse: Callable[[str], Path] = Path.parse) -> Path:
    try:
        return parse(text)
    except errors.InvalidPath as error:
        raise errors.Lame(f"answers with a {what} that is no path: {error.message}") from None


def _optional(text: str, what: str) -> Path | None:
    return _required(text, what) if text else None


def _ascii(text: str, field: str) -> str:
    """Returns an id, which must be ASCII, since tokens contain it."""
    shown = _text(text)
    if not shown.isascii():
        raise errors.Lame(f"{field}: found {cut_shown(text)}; expected ASCII")
    return shown


def _text(text: str) -> str:
    """Returns a name or an id for people and comparisons: short and printable."""
    return printable(text[:_MAX_NAME])
