"""The interpreter changes threads more often while long reads are under way."""

import sys

from directory.api.rpc.switch_interval import SWITCH_SECONDS, long_read


def test_the_interval_is_short_while_any_long_read_is_under_way() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        usual = sys.getswitchinterval()
        first, second = long_read(), long_read()
        with first:
            with second:
                short = sys.getswitchinterval()
            assert sys.getswitchinterval() == short < usual
        assert sys.getswitchinterval() == usual
    finally:
        sys.setswitchinterval(before)
