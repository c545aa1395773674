"""Configs, partitions and ACLs of armed entries: desired state, diffs and calls to Kafka."""
