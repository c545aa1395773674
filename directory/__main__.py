"""``kdir server``: runs directory servers until it gets a signal to stop; see ``--help``.

``kdir restore`` and ``kdir migrate`` come here too, by their names as the first argument.
"""

from __future__ import annotations

import sys

from directory.server.process import main


def _run() -> int:
    if sys.argv[1:2] in (["restore"], ["migrate"]):
        from directory.maintenance.offline_commands import main as keep

        return keep(sys.argv[1], sys.argv[2:])
    return main()


if __name__ == "__main__":
    sys.exit(_run())
