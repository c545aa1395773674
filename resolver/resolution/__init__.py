"""Resolution of a path to its owner, as a state machine without I/O."""
