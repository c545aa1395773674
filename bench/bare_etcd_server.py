"""The bare peer of writes on etcd: a grpcio server that makes guarded transactions in etcd.

``python -m bench.bare_etcd_server ADDRESS`` records the transaction of one mkdir in the store at
``etcd://…``, and repeats it with other names and ids for each call: with the same guards, rows and
bytes, behind the same gRPC.
"""

from __future__ import annotations

import sys
from typing import Final

from bench.bare_etcd import NewDirectories, transacting
from bench.bare_service import serve
from directory.store.etcd.etcd_address import EtcdAddress

_SECONDS: Final = 10.0
_ANSWER: Final = b"x" * 150


def main(address: str) -> None:
    """Serves until it is killed."""
    requests = NewDirectories.record(address, "served")
    with transacting(EtcdAddress.parse(address).endpoints[0]) as transact:

        def create(_request: bytes, _context: object) -> bytes:
            transact(requests.next(), timeout=_SECONDS)
            return _ANSWER

        serve(create)


if __name__ == "__main__":
    main(sys.argv[1])
