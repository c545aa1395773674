"""Counting without locks loses nothing, and is read as Prometheus wants it."""

from __future__ import annotations

import sys
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from directory.server.metrics.instrumentation import CALL_SECONDS, COMMIT_SECONDS, Histogram

BOUNDS = (0.1, 1.0, 2.5)


def test_what_never_counted_is_empty() -> None:
    reading = Histogram(BOUNDS).read()
    assert (reading.buckets, reading.seconds, reading.count) == ((0, 0, 0, 0), 0.0, 0)


def test_a_bound_belongs_to_its_bucket_and_buckets_add_up() -> None:
    histogram = Histogram(BOUNDS)
    for seconds in (0.0, 0.1, 0.2, 1.0, 2.6, 100.0):
        histogram.observe(seconds)
    reading = histogram.read()
    assert reading.buckets == (2, 4, 4, 6)
    assert reading.seconds == pytest.approx(103.9)


@given(st.lists(st.floats(0, 100)))
def test_it_counts_as_counting_each_by_hand_does(durations: list[float]) -> None:
    histogram = Histogram(COMMIT_SECONDS)
    for seconds in durations:
        histogram.observe(seconds)
    reading = histogram.read()
    expected = [sum(one <= bound for one in durations) for bound in COMMIT_SECONDS]
    assert list(reading.buckets) == [*expected, len(durations)]


def test_many_threads_at_once_lose_no_count() -> None:
    histogram, each, threads = Histogram(CALL_SECONDS), 20_000, 8

    def count(_: int) -> None:
        for _ in range(each):
            histogram.observe(0.002)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that a lost count would be seen
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(count, range(threads)))
    finally:
        sys.setswitchinterval(before)
    reading = histogram.read()
    assert reading.count == each * threads
    assert reading.seconds == pytest.approx(each * threads * 0.002)
    assert reading.buckets[bisect_left(CALL_SECONDS, 0.002)] == each * threads
    assert reading.buckets[0] == 0


@pytest.mark.parametrize("bounds", [CALL_SECONDS, COMMIT_SECONDS])
def test_bounds_rise(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
