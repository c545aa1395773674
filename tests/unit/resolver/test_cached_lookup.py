"""What *absent* says when its owner is cut off from its store; which own writes are remembered."""

from __future__ import annotations

from resolver.cached_lookup import Session, absent_error
from resolver.path import Path
from resolver.resolution.values import Absent, AbsentResult, Sender
from resolver.revision_token import Token


def output(*, stale: bool, sealed: bool = False) -> str:
    sender = Sender("kc-1", Path.parse("/la"), "la", stale=stale, age_seconds=61.0, sealed=sealed)
    end = AbsentResult(Path.parse("/la/x"), Absent(Path.parse("/la"), 5), sender, (), 5)
    return absent_error(Path.parse("/la/x"), end).message


def test_an_absence_from_an_old_copy_says_so() -> None:
    assert output(stale=False) == "/la/x does not exist; the nearest directory is /la"
    assert output(stale=True).endswith("(answered from a copy 61 s old: the store of la is away)")
    sealed = "(answered from a copy 61 s old: the store of la is sealed)"
    assert output(stale=True, sealed=True).endswith(sealed)


def test_of_many_clusters_that_were_written_the_one_written_longest_ago_is_forgotten() -> None:
    session = Session()
    for number in range(32):
        session.wrote(str(Token.from_position(f"kc-{number}", "i", 1)))
    session.wrote(str(Token.from_position("kc-0", "i", 9)))
    session.wrote(str(Token.from_position("kc-32", "i", 1)))
    places = Token.parse(session.text).positions
    assert len(places) == 32
    assert places["kc-0"].revision == 9
    assert "kc-1" not in places
