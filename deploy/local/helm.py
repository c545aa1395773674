"""Builds Helm into the cache, for the tests of the chart."""

import shutil
from pathlib import Path

from deploy.local import cache, go
from deploy.local.cache import ServerUnavailable

VERSION = "3.22.0"
SOURCE = Path(__file__).parent / "helm"
_PROGRAM = "helm.sh/helm/v3/cmd/helm"


def fetch() -> Path:
    """Returns the folder with the program helm, built by Go if missing: some minutes.

    Raises:
        ServerUnavailable: Go is missing, or failed.
    """
    return cache.provide(
        _folder(), lambda target: go.build(SOURCE, [_PROGRAM], target, what="Helm")
    )


def installed() -> Path:
    """Returns the program helm, of this machine or of the cache; builds nothing.

    Raises:
        ServerUnavailable: it is not there yet.
    """
    here = shutil.which("helm")
    if here is not None:
        return Path(here)
    folder = cache.find(_folder())
    if folder is None:
        raise ServerUnavailable("Helm is not installed and not in the cache: run `make helm`.")
    return folder / "helm"


def _folder() -> str:
    return f"helm-{VERSION}-{go.digest(SOURCE, ('go.mod', 'go.sum'))}"
