"""What Kafka shows against what the tree records: adoption, stops, and what operators ask of it."""
