"""The Kafka side of a directory: reads Kafka, computes the desired state and applies it.

Only the elected reconciler changes anything in Kafka; services only read it.
"""
