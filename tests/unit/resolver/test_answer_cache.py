"""The cache of answers and referrals, which many threads use at once."""

from resolver.answer_cache import Cache
from resolver.path import Path
from resolver.testing import MemoryDirectory


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


def test_an_answer_that_was_dropped_while_its_owner_was_asked_is_not_put_back() -> None:
    with MemoryDirectory() as directory:
        directory.cluster("/")
        directory.topic("/a/b")
        client = directory.resolver()
        client.resolve("/a/b")
        cache = client.cache
        old = cache.answers["/a/b"]
        client.forget()
        stale = cache.put_stale("/a/b", old, 1000.0, 2.0)
        assert stale.location is not None
        assert stale.location.stale
        assert "/a/b" not in cache.answers
        client.resolve("/a/b")
        newer = cache.answers["/a/b"]
        cache.put_stale("/a/b", old, 1000.0, 2.0)
        assert cache.answers["/a/b"] is newer
