"""`make demo`: a small federation on real Kafka brokers, started, shown and left running."""
