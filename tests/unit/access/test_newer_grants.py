"""Grants of clients that are newer than the server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kdir.v1 import access_pb2

from resolver.errors import InvalidArgument
from tests.unit.access.conftest import ADMIN, House, grants


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_grant_of_a_newer_client_is_not_stored_without_its_condition(
    house: Callable[..., House],
    is_planned: bool,
) -> None:
    la = house()
    la.mkdir("/la/d")
    known = grants("bob", "read")[0]
    condition = bytes([0x3A, 3]) + b"vpn"  # field 7
    newer = access_pb2.Grant.FromString(known.SerializeToString() + condition)
    for method, request in (
        ("AddGrants", access_pb2.AddGrantsRequest(path="/la/d", grants=[known, newer])),
        ("RemoveGrants", access_pb2.RemoveGrantsRequest(path="/la/d", grants=[newer])),
    ):
        request.validate_only = is_planned
        refused = la.refusal(ADMIN, method, request)
        assert isinstance(refused, InvalidArgument)
        assert refused.message.startswith("grants: field 7 is not known to this server")
    asked = access_pb2.ListGrantsRequest(path="/la/d")
    assert not la.ask(ADMIN, "ListGrants", asked).grants
