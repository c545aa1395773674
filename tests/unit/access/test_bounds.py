"""What a request holds is counted before anything is done for it: one typed error, at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import field_mask_pb2
from kdir.v1 import directory_pb2, entry_pb2, federation_pb2, policies_pb2

from directory.api.rpc.call_context import Call
from directory.wire import entry_codec, request_commands
from resolver.errors import DeadlineExceeded, InvalidArgument, KdirError, LimitExceeded
from tests.unit.access.conftest import ADMIN, House

STORES = ("sqlite", "etcd")

Make = Callable[..., House]
MANY = 110_000
"""So many keys fit a request of 4 MiB."""


@pytest.fixture
def la(house: Make) -> House:
    made = house()
    made.mkdir("/la/d")
    return made


def values(count: int) -> policies_pb2.Policies:
    policies = policies_pb2.Policies()
    for number in range(count):
        policies.topic_config[f"redpanda.{number}"].value = "x"
    return policies


def mask(count: int) -> field_mask_pb2.FieldMask:
    return field_mask_pb2.FieldMask(
        paths=[f"policies.topic_config.redpanda.{number}" for number in range(count)]
    )


def what_if(paths: int, keys: int | None = None) -> policies_pb2.GetEffectivePoliciesRequest:
    return policies_pb2.GetEffectivePoliciesRequest(
        path="/la/d", what_if=values(paths if keys is None else keys), what_if_mask=mask(paths)
    )


def update(paths: int, keys: int | None = None) -> directory_pb2.UpdateEntryRequest:
    entry = entry_pb2.Entry(policies=values(paths if keys is None else keys))
    return directory_pb2.UpdateEntryRequest(path="/la/d", entry=entry, update_mask=mask(paths))


REQUESTS = {"GetEffectivePolicies": what_if, "UpdateEntry": update}


@pytest.mark.parametrize("method", REQUESTS)
def test_a_mask_and_its_keys_are_counted_before_they_are_read(
    la: House, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = REQUESTS[method]
    assert la.ask(ADMIN, method, request(1_000)) is not None
    read: list[object] = []

    def reading(message: Any) -> Any:
        read.append(message)
        return entry_codec.policies_from_proto(message)

    monkeypatch.setattr(request_commands, "policies_from_proto", reading)
    for count in (1_001, 10_000, MANY):
        for asked in (request(count), request(count, 0), request(1, count)):
            refused = la.refusal(ADMIN, method, asked)
            assert isinstance(refused, LimitExceeded)
            assert "at most 1000 " in refused.message
            assert refused.metadata["limit"] == "1000"
    assert read == []


@pytest.mark.parametrize("method", REQUESTS)
def test_the_deadline_is_looked_at_while_a_mask_is_gone_through(house: Make, method: str) -> None:
    la = house(limits={"mask_paths": MANY, "policy_keys": MANY, "policies_bytes": 10**9})
    la.mkdir("/la/d")
    request = REQUESTS[method](5_000)
    looks = iter(range(10**9))
    # The caller goes away while it is at it.
    gone_after = 8

    def is_active() -> bool:
        return next(looks) < gone_after

    with pytest.raises(KdirError) as caught:
        la.handlers[method](
            request, Call(time.monotonic() + 60, principal=ADMIN, is_active=is_active)
        )
    assert caught.value.reason == "CANCELLED"
    with pytest.raises(DeadlineExceeded):
        la.handlers[method](
            request, Call(time.monotonic() - 1, principal=ADMIN, is_active=lambda: True)
        )


def test_a_text_in_a_mask_is_named_only_by_its_beginning(la: House) -> None:
    asked = directory_pb2.UpdateEntryRequest(
        path="/la/d", update_mask=field_mask_pb2.FieldMask(paths=["x" * 3_000_000])
    )
    refused = la.refusal(ADMIN, "UpdateEntry", asked)
    assert isinstance(refused, LimitExceeded)
    assert len(refused.message) < 500


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        (entry_pb2.Entry(link=entry_pb2.Link(targets=["/ny"] * 101)), "link.targets"),
        (entry_pb2.Entry(link=entry_pb2.Link(targets=["/ny"] * 1_000_000)), "link.targets"),
        (
            entry_pb2.Entry(mount=entry_pb2.Mount(cluster_id="kc-1", endpoints=["h:1"] * 21)),
            "mount.endpoints",
        ),
        (entry_pb2.Entry(directory=entry_pb2.Directory(), policies=values(1_001)), "policies"),
        (entry_pb2.Entry(directory=entry_pb2.Directory(), policies=values(MANY)), "policies"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_bounds_of_a_new_entry_are_checked_before_it_is_decoded(
    la: House, entry: entry_pb2.Entry, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_commands, "entry_from_proto", None)
    asked = directory_pb2.CreateEntryRequest(path="/la/n", entry=entry)
    refused = la.refusal(ADMIN, "CreateEntry", asked)
    assert isinstance(refused, LimitExceeded)
    assert refused.metadata["field"].startswith(field)


@pytest.mark.parametrize("name", ["", "a b", "x" * 250, "x" * 2_490, "a\nb", "\x1b[2J"])
def test_only_a_name_that_kafka_can_have_is_looked_up_to_be_adopted(la: House, name: str) -> None:
    asked = directory_pb2.CreateEntryRequest(
        path="/la/d/t",
        entry=entry_pb2.Entry(topic=entry_pb2.Topic(physical_name=name)),
        adopt_existing=True,
    )
    refused = la.refusal(ADMIN, "CreateEntry", asked)
    assert refused.reason == ("INVALID_PHYSICAL_NAME" if name else "ABOVE_CEILING")
    assert len(refused.message) < 300
    assert refused.message.isprintable()


# -- what a cluster says of itself -----------------------------------------------------------------


def hello(**changed: Any) -> federation_pb2.Hello:
    fields = {"cluster_id": "kc-child", "cluster": "child", "mount": "/la/child"}
    return federation_pb2.Hello(**(fields | changed))


def linking(la: House, first: federation_pb2.Hello) -> KdirError:
    call = Call(time.monotonic() + 10, principal=ADMIN, is_active=lambda: True)
    with pytest.raises(KdirError) as caught:
        la.handlers["Link"](federation_pb2.LinkRequest(hello=first), call)
    return caught.value


def waiting(la: House) -> list[str]:
    answer = la.ask(ADMIN, "ListMounts", federation_pb2.ListMountsRequest())
    return [one.cluster for one in answer.pending_children]


NO_ENDPOINTS = (
    "unix:/run/docker.sock",
    "unix:///run/docker.sock:1",
    "dns:///la-1.example:7420",
    "ipv4:10.0.0.1:7420",
    "http://la-1.example:7420",
    "la-1.example",
    "la 1.example:7420",
    "la-1.example:0",
    "user@la-1.example:7420",
)


@pytest.mark.parametrize("endpoint", NO_ENDPOINTS)
def test_a_mount_s_endpoint_is_host_and_port(la: House, endpoint: str) -> None:
    asked: Any = directory_pb2.CreateEntryRequest(path="/la/n")
    asked.entry.mount.cluster_id = "kc-1"
    asked.entry.mount.endpoints.append(endpoint)
    refused = la.refusal(ADMIN, "CreateEntry", asked)
    assert isinstance(refused, InvalidArgument)
    assert refused.metadata["field"] == "mount.endpoints"
    asked.entry.mount.endpoints[:] = ["la-1.example:7420"]
    la.ask(ADMIN, "CreateEntry", asked)
    asked = directory_pb2.UpdateEntryRequest(
        path="/la/n",
        entry=entry_pb2.Entry(mount=entry_pb2.Mount(endpoints=[endpoint])),
        update_mask=field_mask_pb2.FieldMask(paths=["mount.endpoints"]),
    )
    refused = la.refusal(ADMIN, "UpdateEntry", asked)
    assert isinstance(refused, InvalidArgument)
    assert refused.metadata["field"] == "mount.endpoints"


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"cluster": "\x1b]0;owned\x07"}, InvalidArgument),
        ({"cluster": "a\nb"}, InvalidArgument),
        ({"cluster": "x" * 257}, LimitExceeded),
        ({"cluster": "x" * 2_570}, LimitExceeded),
        ({"cluster_id": "kc-\x9b"}, InvalidArgument),
        ({"cluster_id": "k" * 257}, LimitExceeded),
        ({"incarnation": "\u202e"}, InvalidArgument),
        ({"endpoints": ["h\t:1"]}, InvalidArgument),
        ({"endpoints": ["h" * 301]}, LimitExceeded),
        *(({"endpoints": [one]}, InvalidArgument) for one in NO_ENDPOINTS),
        ({"endpoints": ["h:1"] * 21}, LimitExceeded),
        ({"endpoints": ["h:1"] * 210}, LimitExceeded),
        *(
            ({"kafka": federation_pb2.KafkaClaim(kafka_cluster_id="k" * size)}, LimitExceeded)
            for size in (1_025, 10_250)
        ),
    ],
)
def test_a_hello_that_is_no_name_is_kept_nowhere(
    la: House, changed: dict[str, Any], error: type[KdirError]
) -> None:
    assert isinstance(linking(la, hello(**changed)), error)
    assert waiting(la) == []


def test_a_hello_at_the_bounds_waits_to_be_mounted(la: House) -> None:
    claim = federation_pb2.KafkaClaim(kafka_cluster_id="k" * 1_024)
    fits = hello(cluster="x" * 256, endpoints=["h:1"] * 20, kafka=claim)
    assert linking(la, fits).reason == "UNKNOWN_CHILD"
    assert waiting(la) == ["x" * 256]
