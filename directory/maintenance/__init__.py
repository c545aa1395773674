"""Maintenance of a cluster's store: backup, restore, migration, and verification."""
