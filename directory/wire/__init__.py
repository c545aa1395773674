"""Codecs between the values of the tree and protobuf; no rules and no I/O."""
