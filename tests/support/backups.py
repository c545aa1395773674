"""A store's backup in memory, and putting one back as `kdir restore --replace` does."""

from __future__ import annotations

import io

from directory.maintenance.backup_stream import backup_of
from directory.maintenance.restore import Backup, plan_restore, restore
from directory.store.base import Store
from resolver.backup_file import BackupWriter

__all__ = ["back_up", "put_back"]


def back_up(store: Store) -> bytes:
    """Returns a backup of a store as it is now."""
    file = io.BytesIO()
    writer = BackupWriter(file)
    for message in backup_of(store):
        writer.write(message)
    writer.close()
    return file.getvalue()


def put_back(backup: bytes, address: str, *, force: bool = False) -> None:
    """Replaces what a store holds by a backup; with ``force`` while servers have it open."""
    plan = plan_restore(Backup.read(io.BytesIO(backup)), address, replace=True, force=force)
    assert not plan.refusals, plan.refusals
    restore(plan)
