"""Lives of a store in etcd: revisions that only rise, whatever etcd's do."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from directory.store.base import FILLED_FROM, Incompatible
from directory.store.etcd.identity import SCHEMA_VERSION, Life

revisions = st.integers(1, 10**12)


def first() -> Life:
    return Life.first("la", None, 0xABC)


def test_what_is_written_is_read_as_it_was() -> None:
    life = first().next(0xDEF, 5, 7, unseal=False).sealed("being looked at")
    assert Life.read(life.stored) == life


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
def test_revisions_of_a_life_are_etcds_and_an_offset(etcd_revision: int, later: int) -> None:
    life = first().next(1, etcd_revision, 3, unseal=False)
    revision = life.revision(etcd_revision + later)
    assert life.etcd_revision(revision) == etcd_revision + later
    assert life.etcd_revision(life.begins - 1) is None
    assert life.etcd_revision(0) is None


def test_nothing_committed_is_revision_zero_of_a_first_life() -> None:
    life = first()
    assert life.revision(0) == 0
    assert life.etcd_revision(0) == 0


def test_a_life_that_is_unsealed_is_another_and_open() -> None:
    sealed = first().sealed(f"{FILLED_FROM}x")
    assert sealed.identity.incarnation == Life.read(sealed.stored).identity.incarnation
    assert sealed.can_be_filled
    opened = sealed.next(1, 5, 5, unseal=True)
    assert opened.identity.sealed == ""
    assert opened.identity.incarnation != sealed.identity.incarnation
    assert not opened.can_be_filled
    restored = sealed.next(1, 5, 5, unseal=False)
    assert restored.identity.sealed == sealed.identity.sealed


@pytest.mark.parametrize(
    "stored", [b"", b"\xff", b"[]", b"{}", b'{"schema_version": 1}', b'{"schema_version": "x"}']
)
def test_what_is_no_identity_is_said_to_be_none(stored: bytes) -> None:
    with pytest.raises(ValueError, match="not an identity"):
        Life.read(stored)


def test_a_newer_schema_is_refused_naming_both() -> None:
    document = json.loads(first().stored) | {"schema_version": SCHEMA_VERSION + 1}
    with pytest.raises(Incompatible, match=f"version {SCHEMA_VERSION + 1}.*up to {SCHEMA_VERSION}"):
        Life.read(json.dumps(document).encode())


def test_another_clusters_identity_is_refused_naming_both() -> None:
    life = first()
    life.refuse_foreign("la", life.identity.cluster_id)
    with pytest.raises(Incompatible, match=r"of cluster la .*, not of ny"):
        life.refuse_foreign("ny", None)
    other = replace(life, identity=replace(life.identity, cluster_id="kc-bbbbbbbbbb"))
    with pytest.raises(Incompatible, match=r"kc-bbbbbbbbbb, not of kc-aaaaaaaaaa"):
        other.refuse_foreign("la", "kc-aaaaaaaaaa")
