"""A stream that nobody takes is ended: the store keeps a revision for it."""

import threading

import pytest

from directory.api import admin_service
from directory.api.rpc.call_context import Call
from directory.kafka.adoption.adoption import AdoptionRow
from directory.store.base import IncompatibleStore, StoreUnreachable
from resolver.errors import Cancelled, StoreUnavailable


def test_a_reader_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_service, "STALLED_SECONDS", 0.05)
    cancelled = threading.Event()
    call = Call(deadline=float("inf"), is_active=lambda: True, cancel=cancelled.set)
    stream = admin_service.end_with_call(iter(["one", "two"]), call)
    assert next(stream) == "one"
    assert cancelled.wait(30)


def test_a_reader_that_takes_all_is_not() -> None:
    ended: list[str] = []
    call = Call(deadline=float("inf"), is_active=lambda: True, cancel=lambda: ended.append("x"))
    assert list(admin_service.end_with_call(iter(["one", "two"]), call)) == ["one", "two"]
    assert ended == []


@pytest.mark.parametrize("error", [StoreUnreachable, IncompatibleStore])
def test_a_store_that_goes_away_in_the_middle_is_reported(error: type[Exception]) -> None:
    def away():  # type: ignore[no-untyped-def]
        yield "one"
        raise error("etcd://secret-place: gone")

    call = Call(deadline=float("inf"), is_active=lambda: True)
    stream = admin_service.end_with_call(away(), call)  # type: ignore[no-untyped-call]
    assert next(stream) == "one"
    with pytest.raises(StoreUnavailable, match="what was sent is incomplete") as raised:
        next(stream)
    assert "secret-place" not in str(raised.value)


def test_a_caller_that_went_away_ends_it() -> None:
    call = Call(deadline=float("inf"), is_active=lambda: False)
    with pytest.raises(Cancelled):
        next(admin_service.end_with_call(iter(["one"]), call))


def test_detached_topics_come_first_where_an_answer_has_no_room_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    actions = {"a": "keep", "b": "adopt", "c": "detached", "d": "keep"}
    rows = [AdoptionRow(name, None, 0, action) for name, action in actions.items()]
    whole = admin_service.adoptions_to_proto(rows)
    assert [one.physical_name for one in whole.adoptions] == ["c", "b", "a", "d"]
    sizes = [one.ByteSize() + 8 for one in whole.adoptions]
    monkeypatch.setattr(admin_service, "_ADOPTIONS_BYTES", sum(sizes[:2]))
    cut = admin_service.adoptions_to_proto(rows)
    assert [one.physical_name for one in cut.adoptions] == ["c", "b"]
    assert cut.omitted_count == 2
