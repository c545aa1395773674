"""Codecs between the values of the tree and protobuf, without I/O."""
