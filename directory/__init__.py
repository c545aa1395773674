"""The directory server of one cluster (or several): the tree, its store, federation and Kafka."""
