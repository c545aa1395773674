"""The words that completion offers where no path is meant: operations, and keys of policies.

Copies, so that a prompt waits for nothing heavy: the contract and Kafka's definitions have the
truth, and a test holds these against them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["KEYS", "OPERATIONS", "TOPIC_CONFIGS"]

OPERATIONS: Final = (
    "all", "alter", "alter-configs", "cluster-action", "create", "create-tokens", "delete",
    "describe", "describe-configs", "describe-tokens", "idempotent-write", "read",
    "two-phase-commit", "write",
)  # fmt: skip
TOPIC_CONFIGS: Final = (
    "cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type",
    "compression.zstd.level", "delete.retention.ms", "file.delete.delay.ms", "flush.messages",
    "flush.ms", "follower.replication.throttled.replicas", "index.interval.bytes",
    "leader.replication.throttled.replicas", "local.retention.bytes", "local.retention.ms",
    "max.compaction.lag.ms", "max.message.bytes", "message.downconversion.enable",
    "message.format.version", "message.timestamp.after.max.ms", "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms", "message.timestamp.type", "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms", "min.insync.replicas", "preallocate", "remote.log.copy.disable",
    "remote.log.delete.on.disable", "remote.storage.enable", "retention.bytes", "retention.ms",
    "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms",
    "unclean.leader.election.enable",
)  # fmt: skip
KEYS: Final = (
    "owner", "contact", "description", "encryption_key_id", "read_only", "partitions",
    "replication_factor", "max_topics", "max_partitions", "closed", "targets", "mode", "writes",
    "fall_back_on_absent", "manage.create", "manage.configs", "manage.acls", "manage.delete",
    "producer.", "consumer.", "tags.",
    *(name if "." in name else f"config.{name}" for name in TOPIC_CONFIGS),
)  # fmt: skip
"""All that ``kdir set`` takes; what ends in a dot goes on."""
