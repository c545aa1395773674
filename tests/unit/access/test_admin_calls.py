"""Operators' calls, through their handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kdir.v1 import admin_pb2

from directory.kafka.adoption import pinned_kafka
from directory.kafka.adoption.vanish_guard import StopReason
from resolver.errors import InvalidArgument
from tests.unit.access.conftest import ADMIN, House

Make = Callable[..., House]
KAFKA: dict[str, Any] = {"bootstrap": ["127.0.0.1:1"], "ceiling": ["create", "configs"]}


@pytest.fixture
def la(house: Make) -> House:
    return house(kafka=KAFKA)


def test_an_acknowledgement_that_is_asked_again_by_its_request_id_is_the_one_made(
    la: House,
) -> None:
    stop = StopReason("3 of 5 topics vanished from Kafka", 3)
    la.put(*pinned_kafka.stop(stop))
    request = admin_pb2.AcknowledgeRequest(stop_reason=stop.text, request_id="r1")
    first = la.ask(ADMIN, "Acknowledge", request)
    assert la.ask(ADMIN, "Acknowledge", request).token == first.token
    # It acknowledges no later stop, and another request has nothing to acknowledge.
    request.request_id = "r2"
    refused = la.refusal(ADMIN, "Acknowledge", request)
    assert isinstance(refused, InvalidArgument)
    assert "nothing is stopped" in refused.message
    request.request_id = "r" * 129
    assert "request_id: found 129" in la.refusal(ADMIN, "Acknowledge", request).message
