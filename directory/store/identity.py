"""Makes the identity of a new store and checks that of an existing one, for sqlite and etcd."""

from __future__ import annotations

import secrets
from typing import Final

from directory.store.base import Identity, IncompatibleStore, StoreChanged

__all__ = [
    "new_identity",
    "random_id",
    "refuse_foreign",
    "refuse_newer",
    "refuse_other_revision",
    "refuse_other_seal",
]

_BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"  # RFC 4648, lower case


def random_id(length: int) -> str:
    """Returns random letters and digits, such as in the ids of stores and clusters."""
    return "".join(secrets.choice(_BASE32) for _ in range(length))


def new_identity(cluster: str, cluster_id: str | None, schema_version: int) -> Identity:
    """Returns the identity of a new store; without an id the cluster gets a random one."""
    return Identity(
        store_id=random_id(16),
        cluster_id=cluster_id or f"kc-{random_id(10)}",
        cluster=cluster,
        incarnation=random_id(16),
        schema_version=schema_version,
    )


def refuse_newer(version: int, known: int) -> None:
    """Checks that a store is of a schema version of at most ``known``.

    Raises:
        IncompatibleStore: a newer kdir made it.
    """
    if version > known:
        raise IncompatibleStore(
            f"has schema version {version}, made by a newer kdir; this one knows up to {known}"
        )


def refuse_foreign(found: Identity, cluster: str, cluster_id: str | None) -> None:
    """Checks that a store is this cluster's: by name and, if ``cluster_id`` is given, by id.

    Raises:
        IncompatibleStore: it is not; has the reason, without the store's address.
    """
    if found.cluster != cluster:
        raise IncompatibleStore(
            f"is the store of cluster {found.cluster} ({found.cluster_id}), not of {cluster}"
        )
    if cluster_id is not None and found.cluster_id != cluster_id:
        raise IncompatibleStore(
            f"is the store of cluster id {found.cluster_id}, not of {cluster_id}"
        )


def refuse_other_seal(store: str, found: str, expected: str | None) -> None:
    """Checks that the seal that was found is the expected one: empty = not sealed, None = any.

    Raises:
        StoreChanged: it is not; names the ``store``.
    """
    if expected not in (None, found):
        raise StoreChanged(
            f"{store}: another process sealed or opened it: seal {found or 'none'} → expected "
            f"{expected or 'none'}"
        )


def refuse_other_revision(store: str, found: int, expected: int | None) -> None:
    """Checks that the revision that was found is the expected one; None = any.

    Raises:
        StoreChanged: it is not; names the ``store``.
    """
    if expected not in (None, found):
        raise StoreChanged(
            f"{store}: another process fills it too: revision {found} → expected {expected}"
        )
