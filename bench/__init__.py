"""Every speed and size claim, as a ratio against a limit or a peer measured in the same run."""
