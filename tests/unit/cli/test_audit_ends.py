"""An audit that is ended from outside leaves nothing behind of what it read."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from resolver.cli.audit import ending_in_order
from resolver.index.audit_query import AuditDatabase


def test_ended_by_sigterm_it_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)

    def audit() -> None:
        with ending_in_order(), AuditDatabase():
            assert list(tmp_path.iterdir())
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        audit()
    assert ended.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before
