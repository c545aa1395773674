"""Process of a directory server: config, startup, authentication, health, logs and metrics."""
