"""A bench case that takes too long is ended, and what it has told by then is kept."""

import time

from bench.limited import within


def tells_and_hangs(tell, value):
    tell(value)
    tell(value + 1)
    time.sleep(600)


def fails(tell):
    raise ValueError("no result")


def test_the_last_value_before_the_deadline():
    start = time.monotonic()
    assert within(5, tells_and_hangs, 1) == 2
    assert time.monotonic() - start < 60


def test_an_error_leaves_nothing():
    assert within(60, fails) is None
