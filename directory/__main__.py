"""``kdir server``: runs directory servers until it gets a signal to stop; see ``--help``.

``kdir restore`` and ``kdir migrate`` come here too, by their names as the first argument.
"""

from __future__ import annotations

import logging
import sys

from directory.server.process import main
from resolver.unforeseen_errors import EXIT_INTERNAL

_log = logging.getLogger("directory")


def _run() -> int:
    if sys.argv[1:2] in (["restore"], ["migrate"]):
        from directory.maintenance.offline_commands import main as keep

        return keep(sys.argv[1], sys.argv[2:])
    try:
        return main()
    except Exception as error:  # noqa: BLE001 - into the log, in its form
        _log.critical("unforeseen: %s", error, exc_info=error)
        return EXIT_INTERNAL


if __name__ == "__main__":
    sys.exit(_run())
