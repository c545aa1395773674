"""The change log (PIP-39): every change of a cluster, published to Kafka once and in order."""
