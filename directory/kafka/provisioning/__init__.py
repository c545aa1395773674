"""Creation and deletion of topics in Kafka: the queue, attempts, and changes just acknowledged."""
