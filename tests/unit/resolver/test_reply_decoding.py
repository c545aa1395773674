"""Replies that cannot be decoded: their sender is no usable server."""

import math

import pytest
from kdir.v1 import entry_pb2, resolve_pb2

from resolver import errors
from resolver.reply_decoding import decode_sender
from resolver.revision_token import Token


def authority(cluster_id: str = "kc-1", incarnation: str = "i1") -> resolve_pb2.Authority:
    cluster = entry_pb2.Cluster(cluster_id=cluster_id, mount="/")
    return resolve_pb2.Authority(cluster=cluster, incarnation=incarnation)


@pytest.mark.parametrize("wrong", [{"cluster_id": "kc-é"}, {"incarnation": "ї1"}])
def test_an_id_that_no_token_can_hold_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(errors.Lame, match=r"found '.+'; expected ASCII"):
        decode_sender(authority(**wrong))


def test_an_id_with_unprintable_characters_is_held_escaped() -> None:
    sender = decode_sender(authority("kc\x1b", incarnation="i\u202e"))
    token = Token.from_position(sender.cluster_id, sender.incarnation, 1)
    assert Token.parse(str(token)) == token


@pytest.mark.parametrize("field", ["age_seconds", "unconfirmed_seconds"])
@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan])
def test_a_time_that_is_no_number_of_seconds_is_refused(field: str, seconds: float) -> None:
    sent = authority()
    setattr(sent, field, seconds)
    with pytest.raises(errors.Lame, match=f"{field}: found {seconds}; expected a finite number"):
        decode_sender(sent)
