"""The Kafka side of a directory: what Kafka shows, what is desired, and making the two agree.

Only the elected reconciler changes anything in Kafka; nothing here answers a client's request.
"""
