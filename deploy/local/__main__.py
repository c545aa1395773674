"""`python -m deploy.local [NAME…]`: fetches local servers, by default Kafka and Delta's jars."""

import sys
from collections.abc import Callable
from pathlib import Path

from deploy.local import etcd, helm, kafka, spark
from deploy.local.cache import ServerUnavailable
from deploy.local.java import java

_SERVERS: dict[str, Callable[[], Path]] = {
    "kafka": kafka.fetch,
    "delta": spark.fetch,
    "etcd": etcd.fetch,
    "helm": helm.fetch,
}
_ON_JAVA = ("kafka", "delta")


def main(names: list[str]) -> int:
    """Fetches servers by name; returns 0, 1 (one is not to be had) or 2 (an unknown name)."""
    unknown = set(names) - set(_SERVERS)
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(_SERVERS)}", file=sys.stderr)
        return 2
    try:
        for name in names or _ON_JAVA:
            if name in _ON_JAVA:
                java()  # raises before a long download, not after
            _SERVERS[name]()
    except ServerUnavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
