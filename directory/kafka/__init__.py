"""The Kafka side of a directory: what Kafka shows, what is desired, and making the two agree.

Of this package, only the elected reconciler changes anything in Kafka; services only read it.
"""
