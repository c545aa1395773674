"""Comparison of Kafka's topics with those of the tree: adoption, stops and operators' requests."""
