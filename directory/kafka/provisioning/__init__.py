"""Topics made in and deleted from Kafka: what waits, attempts, and what was just changed."""
