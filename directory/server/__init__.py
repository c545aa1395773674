"""The process of a directory server: its config, start, identity, health, logs and metrics."""
