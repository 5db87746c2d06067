"""The banks of shared memory, and how many threads of a warp wait for one another there.

Shared memory serves a line of 128 bytes at once, a word of 4 from each of 32 banks: of accesses of
``b`` bytes, those of ``128 / b`` threads. Where these ask for different words of one bank, they
are served one after another; one word may go to all of them.
"""

from __future__ import annotations

from collections.abc import Callable

#: Bytes of a line and of a word of a bank; threads of a warp.
LINE, WORD, WARP = 128, 4, 32


def meetings(index_of: Callable[[int], int], size: int) -> int:
    """The most words of one bank that threads which are served together ask for.

    Parameters
    ----------
    index_of : callable
        ``index_of(thread)``: where the access of a thread of a warp begins, in bytes.
    size : int
        Bytes of an access, of which ``index_of`` is a multiple.

    Returns
    -------
    int
        1 where no two threads meet.
    """
    together, worst = LINE // max(WORD, size), 1
    for first in range(0, WARP, together):
        banks: dict[int, set[int]] = {}
        for thread in range(first, first + together):
            begin = index_of(thread)
            for word in range(begin // WORD, (begin + size - 1) // WORD + 1):
                banks.setdefault(word % (LINE // WORD), set()).add(word)
        worst = max(worst, *map(len, banks.values()))
    return worst
