"""Extras of the distribution, and the error for a feature whose packages are not installed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import util
from types import MappingProxyType
from typing import Final

__all__ = ["EXTRAS", "is_installed", "missing_extra"]

EXTRAS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "kafka": {"confluent_kafka": "confluent-kafka", "fastavro": "fastavro"},
        "etcd": {"etcd3": "etcd3"},
        "identity": {"cryptography": "cryptography", "jwt": "pyjwt"},
        "index": {
            "deltalake": "deltalake",
            "duckdb": "duckdb",
            "pyarrow": "pyarrow",
            "pyspark": "pyspark",
        },
    }
)
"""By extra: the modules that kdir imports, and the distribution of each. A test compares it with
pyproject.toml.
"""


def is_installed(module: str) -> bool:
    """True if a module can be imported, without the cost of importing it."""
    try:
        return util.find_spec(module) is not None
    except ImportError:
        return False


def missing_extra(feature: str, extra: str, *modules: str) -> str:
    """Returns an error message that names the first missing package of a feature and the command
    that installs its extra; empty if none is missing.

    Args:
        modules: modules of the extra that the feature needs; by default all.
    """
    distributions = EXTRAS[extra]
    for module in modules or distributions:
        if not is_installed(module):
            return (
                f"{feature} needs the package {distributions[module]}, which is not installed: "
                f"pip install 'kdir[{extra}]'"
            )
    return ""
