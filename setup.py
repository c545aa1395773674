"""The long description of the distributions: README.md, whose links lead to files of a checkout.

All else is in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

_LINK_TO_FILE = re.compile(r"\[([^\]]+)\]\((?![a-z]+:)([^)#\s]+)[^)\s]*\)")
_READ_ON = "\n\nPaths such as `docs/README.md` are those of files in the source distribution.\n"

_readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")

setup(
    long_description=_LINK_TO_FILE.sub(r"\1 (`\2`)", _readme) + _READ_ON,
    long_description_content_type="text/markdown",
)
