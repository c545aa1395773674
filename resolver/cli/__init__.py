"""The kdir command line: one file per family of verbs; no rule of the tree is decided here."""
