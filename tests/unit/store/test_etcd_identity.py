"""Lives of a store in etcd: revisions that only rise, whatever etcd's do."""

import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from directory.store.base import FILLED_FROM, IncompatibleStore
from directory.store.etcd.connection import EtcdConnection
from directory.store.etcd.etcd_address import EtcdAddress
from directory.store.etcd.incarnation import SCHEMA_VERSION, Incarnation
from directory.store.etcd.keyspace import Keyspace
from directory.store.etcd.watch_state import Head
from directory.store.identity import refuse_foreign

revisions = st.integers(1, 10**12)


def first() -> Incarnation:
    return Incarnation.first("la", None, 0xABC)


def test_what_is_written_is_read_as_it_was() -> None:
    incarnation = first().next(0xDEF, 5, 7, unseal=False).sealed("being looked at")
    assert Incarnation.read(incarnation.stored) == incarnation


@given(etcd_before=revisions, seen=revisions, etcd_after=revisions)
def test_a_new_lifes_revisions_are_above_all_that_are_known(
    etcd_before: int, seen: int, etcd_after: int
) -> None:
    old = first()
    new = old.next(1, etcd_after, max(seen, etcd_before), unseal=False)
    begun = new.revision(etcd_after + 1)
    assert begun >= new.begins > max(seen, etcd_before, etcd_after)
    # And so again, on from there.
    again = new.next(1, etcd_before, begun, unseal=False)
    assert again.revision(etcd_before + 1) > begun


@given(etcd_revision=revisions, later=revisions)
def test_revisions_of_an_incarnation_are_etcds_and_an_offset(
    etcd_revision: int, later: int
) -> None:
    incarnation = first().next(1, etcd_revision, 3, unseal=False)
    revision = incarnation.revision(etcd_revision + later)
    assert incarnation.etcd_revision(revision) == etcd_revision + later
    assert incarnation.etcd_revision(incarnation.begins - 1) is None
    assert incarnation.etcd_revision(0) is None


def test_nothing_committed_is_revision_zero_of_a_first_incarnation() -> None:
    incarnation = first()
    assert incarnation.revision(0) == 0
    assert incarnation.etcd_revision(0) == 0


def test_an_answer_that_comes_late_does_not_replace_a_newer_identity() -> None:
    connection = EtcdConnection(EtcdAddress.parse("etcd://127.0.0.1:1/la"))
    before = first()
    sealed, moved = before.sealed("being migrated to x"), before.sealed("moved to x")
    keyspace = Keyspace(connection, "la", before, time.monotonic)
    for one, revision, expected in (
        (sealed, 12, sealed),
        (before, 11, sealed),
        (sealed, 12, sealed),
        (moved, 13, moved),
        (before.next(1, 5, 5, unseal=True), 14, moved),  # which only ``refresh`` begins
    ):
        assert keyspace.note(one.stored, revision) == one.identity
        assert keyspace.incarnation == expected


@pytest.mark.parametrize(("read_at", "is_late"), [(11, True), (13, False)])
def test_a_read_that_a_watch_overtook_does_not_replace_a_newer_identity(
    monkeypatch: pytest.MonkeyPatch, read_at: int, *, is_late: bool
) -> None:
    connection = EtcdConnection(EtcdAddress.parse("etcd://127.0.0.1:1/la"))
    before = first()
    sealed = before.sealed("being migrated to x")
    keyspace = Keyspace(connection, "la", before, time.monotonic)

    def read_slowly(*_: object) -> Head:
        keyspace.note(sealed.stored, 12)
        return Head(before.etcd_cluster, read_at, "c", 5, 1, before.stored)

    monkeypatch.setattr(keyspace, "head", read_slowly)
    expected = sealed if is_late else before
    assert keyspace.refresh() == keyspace.incarnation == expected


def test_an_etcd_restored_to_before_its_store_was_sealed_is_not_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No commit was lost, so that no incarnation begins."""
    connection = EtcdConnection(EtcdAddress.parse("etcd://127.0.0.1:1/la"))
    before = first()
    keyspace = Keyspace(connection, "la", before, time.monotonic)
    keyspace.note(before.sealed("being migrated to x").stored, 12)
    head = Head(before.etcd_cluster, 11, "c", 5, 1, before.stored)
    monkeypatch.setattr(keyspace, "head", lambda *_: head)
    assert keyspace.refresh() == keyspace.incarnation == before


def test_an_incarnation_that_is_unsealed_is_another_and_open() -> None:
    sealed = first().sealed(f"{FILLED_FROM}x")
    assert sealed.identity.incarnation == Incarnation.read(sealed.stored).identity.incarnation
    assert sealed.identity.partial
    opened = sealed.next(1, 5, 5, unseal=True)
    assert opened.identity.sealed == ""
    assert opened.identity.incarnation != sealed.identity.incarnation
    assert not opened.identity.partial
    restored = sealed.next(1, 5, 5, unseal=False)
    assert restored.identity.sealed == sealed.identity.sealed


@pytest.mark.parametrize(
    "stored", [b"", b"\xff", b"[]", b"{}", b'{"schema_version": 1}', b'{"schema_version": "x"}']
)
def test_what_is_no_identity_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="not an identity"):
        Incarnation.read(stored)


def test_a_newer_schema_is_refused_naming_both() -> None:
    document = json.loads(first().stored) | {"schema_version": SCHEMA_VERSION + 1}
    with pytest.raises(
        IncompatibleStore, match=f"version {SCHEMA_VERSION + 1}.*up to {SCHEMA_VERSION}"
    ):
        Incarnation.read(json.dumps(document).encode())


def test_another_clusters_identity_is_refused_naming_both() -> None:
    incarnation = first()
    refuse_foreign(incarnation.identity, "la", incarnation.identity.cluster_id)
    with pytest.raises(IncompatibleStore, match=r"of cluster la .*, not of ny"):
        refuse_foreign(incarnation.identity, "ny", None)
    other = replace(incarnation, identity=replace(incarnation.identity, cluster_id="kc-bbbbbbbbbb"))
    with pytest.raises(IncompatibleStore, match=r"kc-bbbbbbbbbb, not of kc-aaaaaaaaaa"):
        refuse_foreign(other.identity, "la", "kc-aaaaaaaaaa")
