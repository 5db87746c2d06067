"""Padded shared memory of the Blelloch tree: no level asks a bank for two words."""

import pytest

from tvm_scan.schedules.gpu.block.blelloch import padded

SIZES = {"float64": 8, "float32": 4, "int16": 2, "bool": 1}


def words_of_one_bank(places, size):
    """The most words of one bank that a warp asks for at once, of places in elements."""
    worst, together = 0, 128 // max(4, size)
    for first in range(0, len(places), together):
        banks = {}
        for place in places[first : first + together]:
            word = place * size // max(4, size)
            banks.setdefault(word % together, set()).add(word)
        worst = max([worst, *map(len, banks.values())])
    return worst


def accesses(threads):
    """Elements that the threads of a warp ask for at every level, and those of their own."""
    yield list(range(32))
    for level in range(threads.bit_length() - 1):
        span = 2 << level
        active = range(threads >> (level + 1))
        for end in (0, span >> 1):
            for first in range(0, len(active), 32):
                yield [(t + 1) * span - 1 - end for t in active[first : first + 32]]


@pytest.mark.parametrize("threads", [32, 256, 1024])
@pytest.mark.parametrize("dtype", SIZES)
def test_no_two_threads_meet_in_a_bank(dtype, threads):
    for elements in accesses(threads):
        places = [padded(i, dtype) for i in elements]
        assert len(set(places)) == len(places)
        assert words_of_one_bank(places, SIZES[dtype]) == 1, (elements, places)


def test_one_padding_for_all_sizes_would_not_do():
    pairs = list(accesses(256))[1]
    assert words_of_one_bank([padded(i, "float32") for i in pairs], 8) == 2
    assert words_of_one_bank(pairs, 4) == 2, "and none does for words neither"
