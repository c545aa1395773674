"""The one place that says which conformance rows do not apply to kdir, by category, and why.

A row's category is computed from what the row says, never from its id, so that rows that nobody has
seen yet are sorted alike. Each driver counts what it leaves out in the test's output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["EXCLUSIONS"]

EXCLUSIONS: Final[Mapping[str, str]] = {
    # Finagle
    "dtab-language": "kdir has no language of rules: links are entries, made one by one",
    "dtab-algebra": "kdir has no tables of rules as values that are added and subtracted",
    "system-names": "names that run code (/$/…) have no counterpart; only /$/inet/N and /$/fail, "
    "which stand for a bound and a failing name, are run",
    "weights": "a link's targets have an order and no weights",
    "wildcard-prefixes": "a link stands at one path; it has no wildcards",
    "nested-prefixes": "nothing stands below a link, so that no rule lies below another",
    "root-prefix": "the root of a tree is a directory, never a link",
    "circular-fallback": "of a link's targets kdir leaves out those that lead back and tries the "
    "others; Finagle goes round until it gives up",
    "long-chains": "kdir follows at most 16 links and mounts; Finagle follows 100",
    "union-inside-fallback": "of a fallback whose earlier branch is a union, the union is the "
    "answer; it is not searched for being empty first",
    "unanswered-union": "kdir does not say absent while a target of a union failed; Finagle does",
    "pending-in-fallback": "kdir falls back from what cannot be asked now; Finagle waits for it",
    # HDFS
    "default-namespace": "kdir has no default that answers for what nobody mounted: no route",
    "several-destinations": "a kdir mount is one cluster; several targets are a link's business",
    "client-cache": "a limit of the client's cache, tested with the client (R21)",
    "router-process": "about the router as a running process, tested with running servers",
    # Pulsar
    "fixed-levels": "a Pulsar name has two or three levels; a kdir path has as many as wanted",
    "wider-names": "Pulsar's names hold more characters; kdir's hold those of a Kafka topic",
    "default-tenant": "kdir has no tenant and namespace that a short name falls into",
    "url-encoding": "kdir's names hold no '/', so nothing is encoded",
    "storage-keys": "the form in which Pulsar stores names",
    "partition-suffix": "a kdir name never stands for one partition: Kafka counts them itself",
    "pulsar-settings": "values of settings that Kafka and kdir do not have; what Kafka's own take "
    "is held against a broker (tests/integration/kafka/test_topic_configs.py)",
    "directory-quota": "kdir has no quota on directories",
    "replication-clusters": "a kdir directory is its own cluster's, and names no other",
    "broker-process": "about a running broker: its caches, redirects, timers and compaction",
    # Kafka's authorizer
    "implied-any": "to kdir's authorize_any an allow of READ is one of DESCRIBE, too: it says yes "
    "where there is something that a decision would say yes to",
    "cluster-names": "a kdir grant on clusters stands on a directory and names no cluster",
    "asked-by-pattern": "kdir is asked about one path or name, never about a pattern of names",
    "tokens": "kdir has no grants on delegation tokens, nor on users",
}
