"""The walk from a path to its owner, as a state machine without I/O."""
