"""The caps of lifetimes, and their limits by referrals."""

import pytest

from resolver.resolution.answer_lifetimes import (
    basis_lifetime,
    cap_lifetime,
    cap_negative_lifetime,
    limit_by_referrals,
    saved_seconds_left,
    shortest_lifetime,
)


@pytest.mark.parametrize(
    ("named", "answer", "absence"),
    [(0, 0, 0), (30, 30, 30), (31, 31, 30), (3600, 3600, 30), (3601, 3600, 30)],
)
def test_R18_what_a_server_names_is_capped(named: int, answer: int, absence: int) -> None:
    assert cap_lifetime(named) == answer
    assert cap_negative_lifetime(named) == absence


@pytest.mark.parametrize(
    ("saved", "elapsed", "left"),
    [(60, 20, 40), (60, 61, 0), (1e9, 600, 3000), (60, float("inf"), 0)],
)
def test_R18_what_a_file_names_is_capped(saved: float, elapsed: float, left: float) -> None:
    assert saved_seconds_left(saved, elapsed) == left


def test_R11_no_answer_extends_the_lifetime_of_its_referrals() -> None:
    referrals = shortest_lifetime([None, 60, 10, 40])
    assert referrals == 10
    assert limit_by_referrals(30, referrals) == 10
    assert limit_by_referrals(5, referrals) == 5
    assert basis_lifetime(referrals, 5, recursive=False) == 10
    assert basis_lifetime(referrals, 5, recursive=True) == 5
    assert basis_lifetime(referrals, 30, recursive=True) == 10


def test_start_servers_set_no_limit() -> None:
    assert shortest_lifetime([None, None]) is None
