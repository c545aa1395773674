"""Checks of single referrals and answers. Pure.

A referral must lead nearer to the path. An answer must come from the cluster of the referral, be
about its sender's own mount, and be no older than an earlier one.
"""

from __future__ import annotations

from resolver.path import Path
from resolver.resolution.values import (
    Absent,
    Answer,
    AskedBecause,
    Query,
    Referral,
    Reply,
    Rewrite,
    Sender,
)
from resolver.revision_token import Position

__all__ = [
    "is_above",
    "out_of_bailiwick",
    "outdated_reply",
    "referral_error",
    "sender_mismatch",
]


def referral_error(path: Path, sender: Path, referral: Referral, *, went_down: bool) -> str:
    """Returns why a server mounted at ``sender`` may not refer ``path`` like this; empty = it may.

    The rules (R3): *down* leads to a prefix of the path, strictly below the sender's mount. *Up*
    leads to a strict ancestor of the sender's mount, but not after a step down, and not for a path
    in that mount. *Direct* leads to a prefix of the path; for a path in the sender's mount also
    strictly below that mount.
    """
    mount = referral.mount
    inside = sender.is_prefix_of(path)
    match referral.way:
        case AskedBecause.DOWN:
            if mount is None or not mount.is_prefix_of(path):
                return "down must lie on the path"
            return "" if is_above(sender, mount) else "down must be strictly deeper"
        case AskedBecause.UP:
            if went_down or inside:
                return "up, after a step down"
            if mount is not None and not is_above(mount, sender):
                return "up must be a strict ancestor of the sender"
            return ""
        case AskedBecause.DIRECT:
            if mount is None or not mount.is_prefix_of(path):
                return "direct must lie on the path"
            if inside and not is_above(sender, mount):
                return "direct must be nearer than the sender"
            return ""
        case _:
            return "neither up, down nor direct"


def sender_mismatch(referral: Referral | None, sender: Sender) -> str:
    """Returns why the sender of a reply is not a server of the referral; empty = it is one (R12,
    R16).
    """
    if referral is None:
        return ""
    if referral.cluster_id and sender.cluster_id != referral.cluster_id:
        return f"is cluster {sender.cluster_id}, not {referral.cluster_id}"
    # A server that was never linked can only guess its parent's mount, and sends no cluster id.
    guessed = referral.way is AskedBecause.UP and not referral.cluster_id
    if not guessed and referral.mount is not None and sender.mount != referral.mount:
        return f"is mounted at {sender.mount}, not {referral.mount}"
    if referral.epoch and sender.epoch and sender.epoch != referral.epoch:
        return f"knows epoch {sender.epoch} of its mount, not {referral.epoch}"
    return ""


def outdated_reply(sender: Sender, seen: Position | None) -> str:
    """Returns why a reply is older than one that was received before its query was sent; empty = it
    is not (R17). Revisions of two incarnations cannot be compared.
    """
    if seen is None or sender.incarnation != seen.incarnation or sender.revision >= seen.revision:
        return ""
    return f"revision {sender.revision} is older than {seen.revision}, seen before"


def out_of_bailiwick(ask: Query, reply: Reply, *, site_links: bool) -> str:
    """Returns why a reply is about a path outside the sender's mount; empty = it is not (R6).
    ``site_links``: site links outside the mount are allowed, since the sender's apply to this
    client.
    """
    mount = reply.sender.mount
    match reply.outcome:
        case Answer(path=canonical):
            if not mount.is_prefix_of(canonical):
                return f"answers with {canonical}, outside its mount {mount}"
            inside = ask.recursive or mount.is_prefix_of(ask.path)
        case Absent():
            inside = ask.recursive or mount.is_prefix_of(ask.path)
        case Rewrite(link=link, site_link=site_link):
            if not link.is_prefix_of(ask.path):
                return f"rewrites by the link {link}, which is not on the path"
            inside = mount.is_prefix_of(link) or (site_link and site_links)
        case _:
            return ""
    return "" if inside else f"answers for {ask.path}, outside its mount {mount}"


def is_above(upper: Path, lower: Path) -> bool:
    """True if ``upper`` is a strict ancestor of ``lower``."""
    return upper != lower and upper.is_prefix_of(lower)
