"""``kdir server`` as a release that supports the invented feature levels; run as a module."""

from __future__ import annotations

import sys

from directory.server.process import main
from tests.support.feature_levels import INVENTED

if __name__ == "__main__":
    sys.exit(main(levels=INVENTED))
