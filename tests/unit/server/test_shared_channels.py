"""One channel for many calls: made for the first, closed with the last."""

from contextlib import ExitStack
from typing import cast

import grpc

from directory.server.shared_channels import CALLS, SharedChannel, SharedChannels


class Channel:
    """A channel that can be closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def create() -> grpc.Channel:
    return cast("grpc.Channel", Channel())


def is_closed(shared: SharedChannel) -> bool:
    return cast("Channel", shared.channel).is_closed


def test_a_channel_is_made_for_the_first_call_and_closed_with_the_last() -> None:
    channels = SharedChannels()
    with channels.use("a", create) as one:
        with channels.use("a", create) as two, channels.use("b", create) as other:
            assert one is two
            assert other is not one
        assert is_closed(other)
        assert not is_closed(one)
    assert is_closed(one)
    with channels.use("a", create) as again:
        assert again is not one


def test_a_channel_has_no_more_calls_than_servers_take_of_a_connection() -> None:
    channels = SharedChannels()
    with ExitStack() as stack:
        used = [stack.enter_context(channels.use("a", create)) for _ in range(2 * CALLS + 1)]
        assert len({one.token for one in used}) == 3
        assert not any(map(is_closed, used))
    assert all(map(is_closed, used))


def test_a_retired_channel_gets_no_more_calls_and_is_closed_with_its_last() -> None:
    channels = SharedChannels()
    with ExitStack() as stack:
        first, out_of_phase = (stack.enter_context(ExitStack()) for _ in range(2))
        one = first.enter_context(channels.use("a", create))
        assert out_of_phase.enter_context(channels.use("a", create)) is one
        one.is_retired = True
        first.close()
        again = first.enter_context(channels.use("a", create))
        assert again is not one
        assert not is_closed(one)
        out_of_phase.close()
        assert is_closed(one)
        assert out_of_phase.enter_context(channels.use("a", create)) is again
