"""Grants as values, the tree of grants of one cluster, and the decision with the grant that decided
it.

Nothing here does I/O, reads a clock or imports protobuf. The semantics are Kafka's (KIP-11,
KIP-290, KIP-679), with directories instead of name prefixes (KIP-37); ``docs/decisions`` lists the
differences.
"""
