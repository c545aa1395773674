"""Calls at the owner of a path: which of several errors is raised."""

from __future__ import annotations

import pytest

from resolver import errors
from resolver.owner_calls import more_informative_error

REFUSED = errors.Unreachable("refused")
AWAY = errors.StoreUnavailable("the store is away, so nothing can be written", effect="none")
UNKNOWN = errors.StoreUnavailable("whether the change was made is not known", effect="unknown")


@pytest.mark.parametrize(
    ("known", "error", "raised"),
    [
        (None, REFUSED, REFUSED),
        (REFUSED, AWAY, AWAY),
        (AWAY, REFUSED, AWAY),
        (AWAY, UNKNOWN, UNKNOWN),
        (UNKNOWN, AWAY, UNKNOWN),
        (UNKNOWN, REFUSED, UNKNOWN),
    ],
)
def test_an_unknown_effect_is_raised_whatever_the_next_server_answers(
    known: errors.KdirError | None, error: errors.KdirError, raised: errors.KdirError
) -> None:
    assert more_informative_error(known, error) is raised
