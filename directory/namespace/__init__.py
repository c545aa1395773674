"""The tree of one cluster as pure values: entries, snapshots, lookup, commands and plans.

Nothing here does I/O, reads a clock or imports protobuf: inputs are arguments, and the result of a
command is a ``Plan``.
"""
