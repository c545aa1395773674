"""The tree of one cluster as pure values: entries, snapshots, lookup, commands and plans.

Nothing here does I/O, reads a clock or knows protobuf: what it needs of the world comes in as
arguments, what it wants of the world goes out as a ``Plan``.
"""
