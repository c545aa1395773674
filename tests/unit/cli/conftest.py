"""What several tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def no_settings_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the contexts, caches and colours of the user who runs the tests away."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KDIR_AT", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
