"""The cache of answers and referrals, which many threads use at once."""

from resolver.answer_cache import Cache
from resolver.path import Path


def test_a_start_server_is_noted_while_another_thread_looks_for_a_referral() -> None:
    cache = Cache(lambda: 0.0)

    class NotingPath(Path):
        """A path that another thread's note interrupts while it is compared."""

        def is_prefix_of(self, other: Path) -> bool:
            cache.note_own_mount(Path.parse("/ny"))
            return super().is_prefix_of(other)

    cache.note_own_mount(NotingPath(("la",)))
    assert cache.deepest_referral(Path.parse("/la/tracking")) is None
    assert Path.parse("/ny") in cache.own_mounts()
