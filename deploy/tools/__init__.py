"""Programs for those who change kdir; nothing that a user runs."""
