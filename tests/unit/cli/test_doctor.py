"""``kdir doctor``: what waits, or is not as it is wished, is never said to be well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kdir.v1 import admin_pb2, entry_pb2, federation_pb2, resolve_pb2

from resolver.errors import HandshakeFailed, PermissionDenied, Unauthenticated, Unreachable
from resolver.path import Path as KdirPath
from resolver.testing import MemoryDirectory
from tests.support.command_line import Ran, answering, run

AT = "127.0.0.1:20000"


pytestmark = pytest.mark.usefixtures("no_settings_of_ones_own")


def doctor(*, store: Mapping[str, Any] = {}, kafka: Mapping[str, Any] = {}) -> Ran:
    """Runs ``kdir doctor`` at a server with this status of its store and of Kafka."""
    status = admin_pb2.GetStatusResponse(
        replica_state=admin_pb2.REPLICA_STATE_SERVING,
        store_status=admin_pb2.StoreStatus(**store),
        kafka=admin_pb2.KafkaStatus(reachable=True, leader=True, **kafka),
    )
    status.authority.cluster.cluster, status.authority.cluster.mount = "la", "/la"
    with MemoryDirectory() as tree:
        tree.cluster("/la", "la")
        owner = tree.deepest(KdirPath.parse("/la"))
        assert owner is not None
        answers = {"AdminService.GetStatus": status}
        tree.transport.serve(AT, answering(answers, owner.answer, []))
        return run(["--at", AT, "doctor", "--local"], tree.transport)


def test_what_is_well_is_reported_as_well() -> None:
    ran = doctor(kafka={"acl_count": 4})
    assert (ran.code, "all servers healthy" in ran.err) == (0, True)


def test_a_full_store_is_not_reported_as_well() -> None:
    full = "/var/kdir/la.db: its disk is full, so it takes no writes: make space"
    ran = doctor(store={"full": full, "full_age_seconds": 12.4})
    assert ran.code == 3
    assert "all servers healthy" not in ran.err
    assert f"/la at {AT}: its store is full (12 s ago, at the last change): {full}" in ran.err


@pytest.mark.parametrize(
    ("count", "output"),
    [
        (
            "acl_resources_needing_approval_count",
            "ACLs of 1 topic, group or id needing approval or quota",
        ),
        ("acl_resources_rejected_count", "ACLs of 1 topic, group or id rejected by Kafka"),
        ("acls_removed_externally_count", "1 ACL of kdir's removed externally"),
    ],
)
def test_acls_that_are_not_as_desired_are_named(count: str, output: str) -> None:
    ran = doctor(kafka={count: 1})
    assert ran.code == 3
    assert "all servers healthy" not in ran.err
    assert (
        f"/la at {AT}: {output}: kdir effective --diff /la; kdir arm /la --aspect acls" in ran.err
    )


@pytest.mark.parametrize("count", ["pending_count", "missing_count", "drift_count"])
def test_what_is_under_way_or_differs_is_not_reported_as_well(count: str) -> None:
    ran = doctor(kafka={count: 1})
    assert ran.code == 0
    assert "all servers healthy\n" not in ran.err
    assert "changes pending or drift in Kafka: kdir effective --diff /la" in ran.err


def test_processes_that_share_the_port_of_the_one_that_answered_are_counted() -> None:
    status = admin_pb2.GetStatusResponse(
        replica_state=admin_pb2.REPLICA_STATE_SERVING,
        members=[admin_pb2.Member(server=one, endpoints=[AT]) for one in ("la-1", "la-2", "la-3")],
    )
    status.authority.server = "la-2"
    status.authority.cluster.MergeFrom(
        entry_pb2.Cluster(cluster="la", cluster_id="kc-aaaaaaaaaa", mount="/la")
    )
    ran, _ = _doctor_of_two(status, named=AT)
    assert (ran.code, "all servers healthy" in ran.err) == (0, False)
    assert f"/la at {AT}: not asked: 2 of 3 servers registered with this address" in ran.err


# -- servers that do not answer, or deny ---------------------------------------------------------

DEAD = "127.0.0.1:20009"


def _status(*endpoints: str) -> admin_pb2.GetStatusResponse:
    status = admin_pb2.GetStatusResponse(
        replica_state=admin_pb2.REPLICA_STATE_SERVING,
        members=[admin_pb2.Member(server=one, endpoints=[one]) for one in endpoints],
    )
    status.authority.cluster.MergeFrom(
        entry_pb2.Cluster(cluster="la", cluster_id="kc-aaaaaaaaaa", mount="/la")
    )
    return status


def _doctor_of_two(first: Any, *, named: str = f"{DEAD},{AT}") -> tuple[Ran, list[Any]]:
    """Runs ``kdir doctor`` over a dead server and one that answers with this; and all requests of
    the latter.
    """
    asked: list[Any] = []
    with MemoryDirectory() as tree:
        tree.cluster("/la", "la")
        owner = tree.deepest(KdirPath.parse("/la"))
        assert owner is not None

        def otherwise(method: str, request: Any) -> Any:
            asked.append(request)
            return owner.answer(method, request)

        answers = {"AdminService.GetStatus": first}
        tree.transport.serve(AT, answering(answers, otherwise, []))
        return run(["--at", named, "doctor"], tree.transport), asked


def test_a_server_that_does_not_answer_is_listed_once() -> None:
    ran, asked = _doctor_of_two(_status(AT, DEAD))
    assert ran.code == 3
    assert [line.split("\t")[:4] for line in ran.lines] == [
        ["/la", "la", AT, "serving"],
        ["/la", "la", DEAD, "unreachable"],
    ]
    assert ran.err.count(f"at {DEAD}:") == 1
    assert "no server answered" not in ran.err
    # A cluster without a parent is not asked for the root: that is an error in its log.
    assert not [one for one in asked if isinstance(one, resolve_pb2.ResolveRequest)]


def test_who_is_denied_is_shown_who_they_are() -> None:
    refused = PermissionDenied("User:bob may not DESCRIBE /la", principal="User:bob")
    ran, _ = _doctor_of_two(refused, named=AT)
    assert ran.code == 4
    assert "identity: User:bob\n" in ran.err
    assert "PERMISSION_DENIED" in ran.err


def test_who_is_not_accepted_is_not_shown_as_anonymous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDIR_TOKEN_FILE", "/old.token")
    ran, _ = _doctor_of_two(Unauthenticated("the token has expired"), named=AT)
    assert ran.code == 4
    assert "identity: not accepted, by token of /old.token\n" in ran.err


def test_a_dead_server_beside_one_that_denies_is_unavailable() -> None:
    refused = PermissionDenied("User:bob may not DESCRIBE /la", principal="User:bob")
    assert _doctor_of_two(refused)[0].code == 3


def test_a_failed_handshake_is_denied_and_shows_no_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KDIR_CA", "/ca.pem")
    ran, _ = _doctor_of_two(HandshakeFailed("it wants a client certificate"), named=AT)
    assert ran.code == 4
    assert "it wants a client certificate" in ran.err
    assert "identity:" not in ran.err


def test_a_dead_server_beside_a_failed_handshake_is_unavailable() -> None:
    assert _doctor_of_two(HandshakeFailed("it does not use TLS"))[0].code == 3


def test_a_token_that_no_server_looks_at_is_shown_as_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KDIR_TOKEN", "junk")
    ran, _ = _doctor_of_two(_status(AT), named=AT)
    assert ran.code == 0
    assert (
        "identity: anonymous: the servers do not authenticate callers, a token ignored\n" in ran.err
    )


# -- a server that does not answer which mounts there are -----------------------------------------

STALE = Unreachable("its store has been unreachable for 90 s, longer than max_stale_seconds")


def _doctor_at_stale(*mounts: str, root: Mapping[str, Any] = {}) -> Ran:
    """Runs ``kdir doctor`` at ``/la`` beside these mounts, where ListMounts is refused; ``root``:
    answers of the server of ``/``.
    """
    with MemoryDirectory() as tree:
        endpoints = {mount: tree.cluster(mount) for mount in (*mounts, "/la")}
        status = _status(endpoints["/la"])
        status.parent.configured = status.parent.linked = "/" in mounts
        answers = {"AdminService.GetStatus": status, "FederationService.ListMounts": STALE}
        for mount, some in (("/la", answers), ("/", root)):
            if mount in endpoints:
                handler = answering(some, tree.at(mount).answer, [])
                tree.transport.serve(endpoints[mount], handler)
        return run(["--at", endpoints["/la"], "doctor"], tree.transport)


def test_where_a_server_refuses_its_mounts_the_root_lists_them() -> None:
    ran = _doctor_at_stale("/", "/sf")
    assert [line.split("\t")[:2] for line in ran.lines] == [
        ["/", "root"],
        ["/la", "la"],
        ["/sf", "sf"],
    ]
    assert "not listed" not in ran.err


def test_an_incomplete_list_of_mounts_is_reported_as_incomplete() -> None:
    with MemoryDirectory() as tree:
        endpoint = tree.cluster("/la", "la")
        tree.cluster("/la/geo", "geo")
        status = _status(endpoint)
        listed = tree.at("/la").answer(
            "FederationService.ListMounts", federation_pb2.ListMountsRequest()
        )
        listed.authorities.add().cluster.CopyFrom(status.authority.cluster)
        listed.incomplete_cluster_ids.append("kc-aaaaaaaaaa")
        answers = {
            "AdminService.GetStatus": status,
            "FederationService.ListMounts": listed,
        }
        handler = answering(answers, tree.at("/la").answer, [])
        tree.transport.serve(endpoint, handler)
        ran = run(["--at", endpoint, "doctor"], tree.transport)
        mounts = run(["--at", endpoint, "mounts"], tree.transport)
    incomplete = (
        "mounts of la (kc-aaaaaaaaaa): the list is incomplete, "
        "other clusters may be mounted there\n"
    )
    for one in (ran, mounts):
        assert (one.code, one.err.count(incomplete)) == (3, 1), one.err
    assert "all servers healthy" not in ran.err


def test_mounts_that_no_server_lists_are_reported_as_missing() -> None:
    alone = _doctor_at_stale()
    assert (alone.code, [line.split("\t")[0] for line in alone.lines]) == (3, ["/la"])
    assert f"not listed: other mounts: {STALE}\n" in alone.err
    assert "all servers healthy" not in alone.err
    both = _doctor_at_stale("/", "/sf", root={"FederationService.ListMounts": STALE})
    assert (both.code, [line.split("\t")[0] for line in both.lines]) == (3, ["/", "/la"])
    assert both.err.count("not listed: other mounts: ") == 1


def test_a_stop_names_the_command_that_lists_every_difference() -> None:
    stopped = doctor(kafka={"stop_reason": "7 of 11 topics vanished from Kafka: a, b, …"})
    assert "every difference: kdir verify /la; to continue: kdir ack /la" in stopped.err
