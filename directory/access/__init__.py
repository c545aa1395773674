"""Who may do what: grants as values, the tree of them, and the decision with what decided it.

Nothing here does I/O, reads a clock or knows protobuf. The semantics are Kafka's (KIP-11, KIP-290,
KIP-679), with directories instead of name prefixes (KIP-37); ``docs/decisions`` says where they
differ.
"""
