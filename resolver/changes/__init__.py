"""Reading a cluster's change log in Kafka (PIP-39): records, the state they add up to, audits."""
