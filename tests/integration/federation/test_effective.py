"""Effective policies on running servers: across mounts, with who, when, and what would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kdir.v1 import admin_pb2, admin_pb2_grpc, entry_pb2, policies_pb2, policies_pb2_grpc

from resolver.errors import Absent, InvalidArgument, NotAuthoritative, NotReady, ReadOnly
from tests.support.federation import Federation, Server, eventually

Values = Mapping[str, policies_pb2.EffectiveValue]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with Federation(tmp_path) as made:
        made.start("/")
        yield made


def ask(server: Server, path: str, **fields: Any) -> policies_pb2.GetEffectivePoliciesResponse:
    answer: policies_pb2.GetEffectivePoliciesResponse = server.ask(
        policies_pb2_grpc.PolicyServiceStub,
        "GetEffectivePolicies",
        policies_pb2.GetEffectivePoliciesRequest(path=path, **fields),
    )
    return answer


def values(answer: policies_pb2.GetEffectivePoliciesResponse) -> Values:
    return {one.field: one for one in answer.values}


def put(server: Server, path: str, *cleared: str, **settings: Any) -> None:
    """Sets policies by name; topic configs as ``retention_ms``."""
    entry, mask = entry_pb2.Entry(), []
    for name, value in settings.items():
        if name.endswith("_ms"):
            key = name.replace("_", ".")
            entry.policies.topic_config[key].value = value
            mask.append(f"policies.topic_config.{key}")
        else:
            setattr(entry.policies, name, value)
            mask.append(f"policies.{name}")
    for key in cleared:
        entry.policies.topic_config[key].cleared = True
        mask.append(f"policies.topic_config.{key}")
    server.entries("UpdateEntry", path=path, entry=entry, update_mask={"paths": mask})


def test_each_value_says_where_it_comes_from_across_mounts(federation: Federation) -> None:
    root = federation["/"]
    la = federation.join("/la", "/")
    tracking = federation.join("/la/tracking", "/la")
    tracking.mkdir("/la/tracking/search")
    put(root, "/", owner="root", retention_ms="1000", flush_ms="1")
    put(la, "/la", "flush.ms", owner="la")
    put(tracking, "/la/tracking/search", retention_ms="5")

    def arrived() -> Values:
        found = values(ask(tracking, "/la/tracking/search"))
        assert "owner" in found
        assert found["owner"].value == "la"
        assert [one.source_path for one in found["owner"].overrides] == ["/"]
        assert "topic_config[retention.ms]" in found
        flush = found["topic_config[flush.ms]"]
        assert (flush.cleared, flush.value, flush.source_path) == (True, "", "/la")
        return found

    found = eventually(arrived)
    assert found["owner"].source_path == "/la"
    assert [(one.value, one.source_path) for one in found["owner"].overrides] == [("root", "/")]
    retention = found["topic_config[retention.ms]"]
    assert (retention.value, retention.source_path) == ("5", "/la/tracking/search")
    assert [(one.value, one.source_path) for one in retention.overrides] == [("1000", "/")]
    assert retention.set_time.seconds > 1_700_000_000
    assert not retention.HasField("kafka_value")
    flush = found["topic_config[flush.ms]"]  # ended at /la: who did so is shown
    assert [(one.value, one.source_path) for one in flush.overrides] == [("1", "/")]

    answer = ask(tracking, "/la/tracking/search")
    assert [one.cluster_id for one in answer.ancestors] == [la.cluster_id, root.cluster_id]
    assert all(one.incarnation and one.revision for one in answer.ancestors)
    # With every ancestor away, and after a restart, the same holds; its age says how old it is.
    root.kill()
    la.kill()
    tracking.restart()
    again = eventually(lambda: ask(tracking, "/la/tracking/search"))
    assert values(again) == found
    eventually(lambda: ask(tracking, "/la/tracking/search").ancestors[0].age_seconds > 1)


def test_what_is_set_above_a_mount_binds_what_is_made_below_it(federation: Federation) -> None:
    root = federation["/"]
    la = federation.join("/la", "/")
    la.mkdir("/la/x")
    put(root, "/", read_only=True)
    eventually(lambda: "read_only" in values(ask(la, "/la")))
    with pytest.raises(ReadOnly, match=r"/ is read-only"):
        la.mkdir("/la/y")
    put(la, "/la/x", read_only=False)  # nearer, and so it holds
    la.mkdir("/la/x/y")


def test_what_a_change_would_do_is_shown_and_not_done(federation: Federation) -> None:
    root = federation["/"]
    for path in ("/a/b/c", "/a/d"):
        root.mkdir(path)
    put(root, "/a/d", retention_ms="7")
    what_if = policies_pb2.Policies()
    what_if.topic_config["retention.ms"].value = "9"
    answer = ask(
        root,
        "/a",
        what_if=what_if,
        what_if_mask={"paths": ["policies.topic_config.retention.ms"]},
    )
    assert values(answer)["topic_config[retention.ms]"].value == "9"
    assert values(answer)["topic_config[retention.ms]"].source_path == "/a"
    assert not values(answer)["topic_config[retention.ms]"].HasField("set_time")
    assert answer.topics_changed == 0
    assert values(ask(root, "/a")) == {}
    what_if.topic_config["retention.ms"].value = "soon"
    mask = {"paths": ["policies.topic_config.retention.ms"]}
    with pytest.raises(InvalidArgument, match=r"retention\.ms: found 'soon'"):
        ask(root, "/a", what_if=what_if, what_if_mask=mask)
    with pytest.raises(InvalidArgument, match="what_if_mask"):
        ask(root, "/a", what_if_mask={"paths": ["link.targets"]})


def test_only_the_owner_says(federation: Federation) -> None:
    root = federation["/"]
    la = federation.join("/la", "/")
    with pytest.raises(Absent):
        ask(root, "/nothing")
    with pytest.raises(NotAuthoritative):
        ask(root, "/la/x")
    with pytest.raises(NotAuthoritative):
        ask(la, "/ny")


def test_a_detached_cluster_keeps_what_it_inherits_until_it_is_attached(
    federation: Federation,
) -> None:
    root = federation["/"]
    la = federation.join("/la", "/")
    put(root, "/", owner="root")
    eventually(lambda: "owner" in values(ask(la, "/la")))

    kept = _admin(la, "DetachParent", keep_inherited=True).kept
    assert list(kept) == ["/"]
    eventually(lambda: not la.status().parent.linked)
    put(root, "/", owner="another")
    assert "detached by" in la.status().parent.detached_reason
    assert values(ask(la, "/la"))["owner"].value == "root"
    eventually(lambda: "detached by" in la.status().parent.message)
    assert values(ask(la, "/la"))["owner"].value == "root"

    _admin(la, "AttachParent")
    eventually(lambda: values(ask(la, "/la"))["owner"].value == "another")
    assert la.status().parent.detached_reason == ""
    with pytest.raises(InvalidArgument, match="keep_inherited"):
        _admin(la, "DetachParent")
    with pytest.raises(InvalidArgument, match="no parent"):
        _admin(root, "DetachParent", keep_inherited=True)


def test_P3_effective_is_not_ready_before_a_parent_has_sent_it(federation: Federation) -> None:
    la = federation.start("/la", "/")  # not mounted: no parent tells it anything
    with pytest.raises(NotReady, match="no parent has sent"):
        ask(la, "/la")


def _admin(server: Server, method: str, **fields: Any) -> Any:
    request = getattr(admin_pb2, f"{method}Request")(**fields)
    return server.ask(admin_pb2_grpc.AdminServiceStub, method, request)
