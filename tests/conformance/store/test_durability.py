"""What was acknowledged survives kill -9, and nothing is seen by halves."""

import random
import signal
import subprocess
import time

from tests.conformance.store.places import Place, output_of, say_go, start_worker
from tests.conformance.store.reading import everything, following, put, until


def _kill_in_the_middle(workers: list[subprocess.Popen[str]], seconds: float) -> list[list[str]]:
    for worker in workers:
        assert output_of(worker).readline() == "ready\n"
    for worker in workers:
        say_go(worker)
    time.sleep(seconds)
    reported = []
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    for worker in workers:
        reported.append([line for line in output_of(worker) if line.endswith("\n")])
        worker.wait()
    return reported


def test_S1_kill_9_in_the_middle_of_commits_loses_nothing_acknowledged(place: Place) -> None:
    chance = random.Random(1)
    store = place.open()
    incarnation = store.identity.incarnation
    acknowledged: dict[int, str] = {}
    expected: dict[bytes, bytes] = {}
    for round_number in range(12):
        names = [f"{round_number}a", f"{round_number}b"]
        workers = [start_worker(place, "write", name) for name in names]
        for name, lines in zip(
            names, _kill_in_the_middle(workers, chance.uniform(0.005, 0.12)), strict=True
        ):
            for line in lines:
                number, revision, commit_id = line.split()
                acknowledged[int(revision)] = commit_id
                expected[f"{name}/{number}".encode()] = number.encode()
        put(store, (b"round", b"%d" % round_number))  # the lock was freed by the kernel
    assert len(acknowledged) > 50

    # By a store that was open all the time, and by one opened after it all.
    store.close()
    store = place.open()
    assert store.identity.incarnation == incarnation
    rows = everything(store)
    assert expected.items() <= rows.items()
    with following(store) as watch:
        changes = until(watch, store.load().revision)
    revisions = [change.revision for change in changes]
    assert revisions == sorted(set(revisions))
    by_revision = {change.revision: change.commit_id for change in changes}
    assert acknowledged.items() <= by_revision.items()
    # Both keys of a commit, or neither: the newest of each worker is what its "last" says.
    for key, value in rows.items():
        if key.startswith(b"last/"):
            own = key.removeprefix(b"last/") + b"/"
            numbers = [int(k.removeprefix(own)) for k in rows if k.startswith(own)]
            assert max(numbers) == int(value)
