"""N2 and N3 across two servers of one store: with a token never older, without one boundedly so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kdir.v1 import resolve_pb2

from directory.api import token_waits
from resolver.revision_token import Token
from tests.integration.servers.lagging import One
from tests.support.federation import eventually


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[One, One]]:
    store = f"sqlite:///{tmp_path / 'store.sqlite'}"
    with ExitStack() as cleanup:
        yield One(store, cleanup), One(store, cleanup, max_stale_seconds=5.0)


def make_it_lag(writer: One, reader: One) -> str:
    """Makes a write that the reader does not receive, and returns its token."""
    reader.lag()
    writer.mkdir("/la/seen")
    eventually(lambda: reader.outcome("/la/seen") == "resolution")
    return writer.mkdir("/la/unseen")


def test_a_token_of_one_server_is_waited_for_by_the_other(two: tuple[One, One]) -> None:
    one, other = two
    token = make_it_lag(one, other)
    assert other.outcome("/la/unseen") == "absent"
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.append(other.outcome("/la/unseen", token)))
    waiting.start()
    other.catch_up()
    waiting.join(30)
    assert found == ["resolution"]


def test_N2_without_a_token_an_answer_may_be_old_and_says_so_up_to_a_limit(
    two: tuple[One, One],
) -> None:
    one, other = two
    other.cluster.replica.stale_after_seconds = 0.3
    make_it_lag(one, other)
    assert other.outcome("/la/unseen") == "absent"

    def stale() -> resolve_pb2.Authority | None:
        authority = other.resolve("/la/unseen").authority
        return authority if authority.stale else None

    authority = eventually(stale)
    assert authority is not None
    assert 0 < authority.age_seconds < 5.1
    eventually(lambda: other.outcome("/la/unseen") == "UNREACHABLE")
    other.catch_up()
    eventually(lambda: other.outcome("/la/unseen") == "resolution")
    assert not other.resolve("/la/unseen").authority.stale


def test_N3_tokens_of_others_forged_or_of_the_future(
    two: tuple[One, One], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_waits, "LONGEST_WAIT_SECONDS", 1.0)
    one, other = two
    token = one.mkdir("/la/x")
    ((cluster, place),) = Token.parse(token).positions.items()
    foreign = Token.from_position("kc-other", "its-life", 10**9)
    future = Token.from_position(cluster, place.incarnation, place.revision + 10**6)
    for server in (one, other):
        assert server.outcome("/la/x", token) == "resolution"
        assert server.outcome("/la/x", str(foreign)) == "resolution", "ignored"
        both = Token.merge([foreign, Token.parse(token)])
        assert server.outcome("/la/x", str(both)) == "resolution"
        for forged in ("nonsense", token[:-2] + "aa", token[1:], token * 2, "\0", "é"):
            assert server.outcome("/la/x", forged) == "INVALID_TOKEN", forged
        older = Token.from_position(cluster, "another-life", place.revision)
        assert server.outcome("/la/x", str(older)) == "TOKEN_EXPIRED"
        # No hang: within the caller's deadline, whichever side notices it first.
        assert server.outcome("/la/x", str(future), timeout=0.5) in {
            "TOKEN_FROM_FUTURE",
            "DEADLINE_EXCEEDED",
        }
        assert server.outcome("/la/x", str(future)) == "TOKEN_FROM_FUTURE"
