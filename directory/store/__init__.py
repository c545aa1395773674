"""Where the truth of one cluster is kept: a contract, its conformance suite, and the stores."""
