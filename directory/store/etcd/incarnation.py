"""Incarnation of a store in etcd, stored with its identity in one key that every transaction
compares.

The revisions of an incarnation are etcd's plus an offset of its own: a restored etcd counts up
again to revisions that clients have seen, and no guard or token from before the restore may match a
revision after it (decision 0009).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from directory.store.base import Identity
from directory.store.identity import new_identity, random_id, refuse_newer

__all__ = ["SCHEMA_VERSION", "Incarnation"]

SCHEMA_VERSION: Final = 1
_INCARNATION_STEP: Final = 1_000_000_000
"""Distance of a new incarnation's first revision from the highest known one of the previous
incarnation. It is large, as revisions that a restore lost may be unknown, and all users of etcd
share its revisions.
"""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """Incarnation of a store. ``stored`` is exactly the value in etcd."""

    identity: Identity
    etcd_cluster: int
    """etcd's own cluster id: another one means that the store was restored or moved."""
    offset: int
    """Difference between the store's revisions and etcd's."""
    begins: int
    """First revision of the store in it; lower ones are of earlier incarnations."""
    stored: bytes = b""

    @classmethod
    def first(cls, cluster: str, cluster_id: str | None, etcd_cluster: int) -> Incarnation:
        """Returns the incarnation of a new store (``new_identity``)."""
        return _written(cls(new_identity(cluster, cluster_id, SCHEMA_VERSION), etcd_cluster, 0, 0))

    @classmethod
    def read(cls, stored: bytes) -> Self:
        """Parses the value in etcd.

        Raises:
            ValueError: it cannot be read; has the reason.
            IncompatibleStore: a newer kdir wrote it.
        """
        try:
            found: dict[str, Any] = json.loads(stored)
            version = int(found["schema_version"])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"not an identity ({type(error).__name__})") from None
        refuse_newer(version, SCHEMA_VERSION)
        try:
            identity = Identity(
                store_id=str(found["store_id"]),
                cluster_id=str(found["cluster_id"]),
                cluster=str(found["cluster"]),
                incarnation=str(found["incarnation"]),
                schema_version=version,
                sealed=str(found["sealed"]),
            )
            return cls(
                identity,
                int(found["etcd_cluster"], 16),
                int(found["offset"]),
                int(found["begins"]),
                stored,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"not an identity ({type(error).__name__}: {error})") from None

    def sealed(self, why: str) -> Incarnation:
        """Returns the same incarnation, sealed."""
        return _written(replace(self, identity=replace(self.identity, sealed=why)))

    def next(
        self, etcd_cluster: int, etcd_revision: int, seen: int, *, unseal: bool
    ) -> Incarnation:
        """Returns the next incarnation, when etcd is at ``etcd_revision``; ``seen`` is the highest
        known revision of this one.
        """
        below = max(seen, self.revision(etcd_revision)) + _INCARNATION_STEP
        identity = replace(
            self.identity,
            incarnation=random_id(16),
            sealed="" if unseal else self.identity.sealed,
        )
        return _written(
            replace(
                self,
                identity=identity,
                etcd_cluster=etcd_cluster,
                offset=below - etcd_revision,
                begins=below + 1,
            )
        )

    def revision(self, etcd_revision: int) -> int:
        """Returns the store's revision for one of etcd's; 0 = nothing was committed."""
        return etcd_revision + self.offset if etcd_revision else 0

    def etcd_revision(self, revision: int) -> int | None:
        """Returns etcd's revision for one of the store's; None: of another incarnation."""
        if revision < self.begins:
            return None
        return revision - self.offset if revision else 0


def _written(incarnation: Incarnation) -> Incarnation:
    """Returns the incarnation with ``stored`` set to its value in etcd."""
    one = incarnation.identity
    document = {
        "store_id": one.store_id,
        "cluster_id": one.cluster_id,
        "cluster": one.cluster,
        "incarnation": one.incarnation,
        "schema_version": one.schema_version,
        "sealed": one.sealed,
        "etcd_cluster": f"{incarnation.etcd_cluster:x}",
        "offset": incarnation.offset,
        "begins": incarnation.begins,
    }
    return replace(incarnation, stored=json.dumps(document).encode())
