"""What *absent* says when its owner is cut off from its store."""

from __future__ import annotations

from resolver.cached_lookup import absent_error
from resolver.path import Path
from resolver.resolution.values import Absent, AbsentResult, Sender


def output(*, stale: bool) -> str:
    sender = Sender("kc-1", Path.parse("/la"), "la", stale=stale, age_seconds=61.0)
    end = AbsentResult(Path.parse("/la/x"), Absent(Path.parse("/la"), 5), sender, (), 5)
    return absent_error(Path.parse("/la/x"), end).message


def test_an_absence_from_an_old_copy_says_so() -> None:
    assert output(stale=False) == "/la/x does not exist; the nearest directory is /la"
    assert output(stale=True).endswith("(answered from a copy 61 s old: the store of la is away)")
