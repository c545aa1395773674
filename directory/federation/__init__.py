"""Federation: where a cluster hangs, whom it may refer to whom, and the link to its parent."""
