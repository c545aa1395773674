"""``kdir server``: runs directory servers until told to stop; see ``--help``."""

from __future__ import annotations

import sys

from directory.process import main

if __name__ == "__main__":
    sys.exit(main())
