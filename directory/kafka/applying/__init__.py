"""Configs, partitions and ACLs of armed entries: what is desired, what differs, what is sent."""
