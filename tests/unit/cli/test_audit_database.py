"""The database that an audit reads changes into: on a full disk, and ended from outside."""

import os
import resource
import signal
import tempfile
from pathlib import Path

import pytest

from resolver.changes.audit import UnreadLog
from resolver.cli.session import ending_in_order
from resolver.errors import InvalidArgument
from resolver.index.audit_query import AuditDatabase


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_by_a_signal_it_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.signal(number, signal.SIG_DFL)

    def audit() -> None:
        with ending_in_order(), AuditDatabase():
            assert list(tmp_path.iterdir())
            os.kill(os.getpid(), number)

    with pytest.raises(SystemExit) as ended:
        audit()
    assert ended.value.code == 128 + number
    assert list(tmp_path.iterdir()) == []
    assert signal.signal(number, before) == signal.SIG_DFL


def test_a_hangup_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_in_order():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        assert signal.signal(signal.SIGHUP, before) == signal.SIG_IGN


def test_a_disk_that_takes_no_more_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    much = [UnreadLog("kc-a", "la", "/la", os.urandom(4_000).hex()) for _ in range(200)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with AuditDatabase() as database:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
        try:
            database.add_unread(much)
            with pytest.raises(InvalidArgument, match=r"cannot be written to .* TMPDIR names"):
                list(database.query("FROM unread"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
