"""Another process at the same store; the tests kill it. Not a test itself."""

import sys
import time
from collections.abc import Callable, Iterator

from directory.store.addresses import open_store
from directory.store.base import (
    FILLED_FROM,
    Committed,
    Conflict,
    KeyEquals,
    Put,
    Store,
    StoreIsSealed,
    Transaction,
)


def say(*arguments: object) -> None:
    print(*arguments, flush=True)  # noqa: T201 - its output is read by the test


def await_go() -> None:
    say("ready")
    sys.stdin.readline()


def write(store: Store, name: str) -> None:
    """Commits for ever, each time two keys at once, and says what was acknowledged."""
    await_go()
    for number in range(1_000_000):
        value = b"%d" % number
        writes = (Put(f"{name}/{number}".encode(), value), Put(f"last/{name}".encode(), value))
        try:
            done = store.commit(Transaction((), writes))
        except StoreIsSealed:
            say("sealed")
            return
        assert isinstance(done, Committed)
        say(number, done.revision, done.commit_id)


def race(store: Store, name: str, rounds: str) -> None:
    """Tries to be the first to make each of some keys, and says which it made."""
    await_go()
    for number in range(int(rounds)):
        key = f"race/{number}".encode()
        done = store.commit(Transaction((KeyEquals(key, None),), (Put(key, name.encode()),)))
        say(number, "won" if isinstance(done, Committed) else "lost")


def lead(store: Store, role: str, name: str) -> None:
    """Takes a role and keeps it until it is killed."""
    leadership = store.elect(role, name)
    assert leadership is not None
    say("leads", leadership.guard.value.hex() if leadership.guard.value else "")
    time.sleep(60)


def hold(store: Store, role: str, name: str) -> None:
    """Takes a role; for each line that it reads it says whether it holds it, and whether a write
    under it was made.
    """
    leadership = store.elect(role, name)
    assert leadership is not None
    say("leads")
    for number, _ in enumerate(sys.stdin):
        held = leadership.held()
        write = Put(f"held/{name}".encode(), b"%d" % number)
        done = store.commit(Transaction((leadership.guard,), (write,)), 30)
        say("held" if held else "lost", type(done).__name__)


def announce(store: Store, key: str, value: str) -> None:
    """Announces a key; then says, for each line that it is told, whether it still lasts."""
    announcement = store.create_ephemeral(key.encode(), value.encode())
    assert not isinstance(announcement, Conflict), announcement
    say("announced")
    for _ in sys.stdin:
        say("lasts" if announcement.is_alive() else "lost")


def fill(store: Store, name: str, count: str) -> None:
    """Empties the store and fills it with so many rows, saying how far it is."""
    store.seal(f"{FILLED_FROM}{name}")
    await_go()
    store.clear()

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for number in range(int(count)):
            if number % 100 == 0:
                say(number)
            yield f"{name}/{number:08}".encode(), b"%d" % number

    say("filled", store.fill(rows()))


TASKS: dict[str, Callable[..., None]] = {
    "write": write,
    "race": race,
    "lead": lead,
    "hold": hold,
    "announce": announce,
    "fill": fill,
}

if __name__ == "__main__":
    task, address, *arguments = sys.argv[1:]
    TASKS[task](open_store(address, "la"), *arguments)
