"""Large changes on their way, as people and programs read them."""

from __future__ import annotations

import pytest
from kdir.v1 import admin_pb2

from resolver.cli.entry_rows import progress_text

STARTED = 1_800_000_000_000


def delete(**fields: object) -> admin_pb2.Progress:
    values: dict[str, object] = {"kind": "delete", "path": "/la/x", "started_at_ms": STARTED}
    return admin_pb2.Progress(**(values | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("progress", "seconds", "text"),
    [
        (
            delete(done=412_000, remaining=588_000),
            126,
            "delete /la/x: 412,000 of 1,000,000 done, 2m left",
        ),
        # Nothing is known of how long it takes yet, or of how much there was.
        (delete(done=0, remaining=10), 60, "delete /la/x: 0 of 10 done"),
        (delete(done=5, remaining=5), 0.5, "delete /la/x: 5 of 10 done"),
        (delete(remaining=588_000, started_at_ms=0), 60, "delete /la/x: 588,000 left"),
        (delete(done=7), 60, "delete /la/x: 7 done"),
        (delete(done=10, remaining=0), 60, "delete /la/x: 10 of 10 done"),
        # The server's clock is ahead of ours.
        (delete(done=5, remaining=5), -60, "delete /la/x: 5 of 10 done"),
        (
            delete(
                kind="adopt", done=0, remaining=2, principal="User:ana", message="Kafka is away"
            ),
            1,
            "adopt /la/x: 0 of 2 done, requested by User:ana; blocked: Kafka is away",
        ),
    ],
)
def test_how_far_a_change_is(progress: admin_pb2.Progress, seconds: float, text: str) -> None:
    assert progress_text(progress, STARTED / 1000 + seconds) == text
