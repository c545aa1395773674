"""``kdir server``: runs directory servers until it gets a signal to stop; see ``--help``.

``kdir restore`` and ``kdir migrate`` come here too, by their names as the first argument.
"""

from __future__ import annotations

import io
import logging
import sys

_log = logging.getLogger("directory")
_INTERRUPTED = 130


def _run() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # its encoding need not have all characters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        # Imported here, since it takes a second, in which ^C is to print no traceback.
        if sys.argv[1:2] in (["restore"], ["migrate"]):
            from directory.maintenance.offline_commands import main as keep

            return keep(sys.argv[1], sys.argv[2:])
        from directory.server.process import main

        return main()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - into the log, in its form
        from resolver.unforeseen_errors import EXIT_INTERNAL

        _log.critical("unforeseen: %s", error, exc_info=error)
        return EXIT_INTERNAL


if __name__ == "__main__":
    sys.exit(_run())
