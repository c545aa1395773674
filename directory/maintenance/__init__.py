"""Keeping a cluster's store: backup, restore, migration, and verification."""
