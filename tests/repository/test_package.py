"""What is installed: the licence, and the files that are no Python."""

import re
import tomllib
from pathlib import Path

from resolver.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[2]


def test_the_licence_is_the_whole_of_apache_2_0() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "9. Accepting Warranty or Additional Liability." in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_each_pattern_of_package_data_matches_a_file() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    packages = [ROOT / "resolver", ROOT / "directory", ROOT / "proto" / "kdir"]
    unused = [one for one in patterns if not any(any(p.rglob(one)) for p in packages)]
    assert unused == []


def test_the_extras_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    named = {
        extra: {re.split(r"[^\w-]", one)[0] for one in optional[extra]}
        for extra in optional.keys() - {"dev"}
    }
    assert {extra: set(modules.values()) for extra, modules in EXTRAS.items()} == named
