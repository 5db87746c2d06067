"""Measured constants of a CPU: its work per cycle, its latencies, and the speed of its memory."""

from __future__ import annotations

from dataclasses import dataclass

#: The share of a cache that is held whole, if it is nobody else's, and how many times as large is
#: what finds nothing of itself in a cache. Of a last cache of 32 MB, columns of 12, 16, 24, 32 and
#: 48 MB took a core of a Zen 4 1.1, 1.2, 1.6, 2.1 and 2.7 times as long a byte as those of 8 MB.
_HELD, _FOUND = 0.75, 1.5
#: Constants that the instructions of a target say, which no file of a machine has to have.
OF_TARGET = frozenset({"fused", "halves"})


@dataclass(frozen=True)
class CpuChip:
    """Constants of one kind of processor.

    Attributes
    ----------
    cycle : float
        Seconds of a cycle.
    sum_latency, product_latency : float
        Cycles from operand to result of a float's sum, and of a product with or without a sum.
    fused : float
        Cycles that the sum of a product takes beside it: none where one instruction does both.
    halves : float
        Operations of a number of 16 bits that becomes one of 32, or is made of one, beside those
        that are counted: none where an instruction does it.
    extremum_latency : float
        The same of a float's maximum or minimum: 4 on Intel's processors, 1 or 2 on AMD's.
    issue : float
        Instructions per cycle of scalar code.
    vector_issue, shuffle_issue : float
        Vector operations per cycle; those of them that exchange cells.
    mixed_issue, mixed_integers : float
        Operations and exchanges together, of vectors of 64 bytes; of narrower ones `narrow` times
        as many. The second of integers, for which a Zen 4 has four ports, where it sums floats on
        two.
    narrow : float
        How many vectors of 32 bytes are worked on in the time of one of 64: two where that is
        worked on in halves, and put together of two shuffles where it moves by some cells; a
        Cascade Lake has hardly more ports for them, 1.2 to 1.5.
    integer_product : float
        Operations of a product of integers in a vector: halves of it, on one port of Intel's.
    integer_extremum : float
        Operations of a maximum or minimum of integers in a vector.
    apart : float
        Cycles of a cell that is put into a vector of less than 64 bytes by itself.
    taken : float
        Cycles of a cell that is taken out of a vector to be stored by itself.
    gathers : float
        How many times as long as their instructions say cells take that LLVM gathers from rows and
        scatters to them. Microcode that keeps what is in the caches from others makes a Cascade
        Lake take 2.7 times as long.
    strided : float
        The same of cells that a vector of time reads and writes where they lie apart.
    stored : float
        Cycles of a store, however few its bytes: there is one in a cycle, of a Zen 5 two.
    tile : float
        Cycles of a shuffle, or of an access, of a row of a tile on its way between memory and
        registers: a square of 16 by 16 cells has four of each for a row. A Zen 5 works on vectors
        of 64 bytes as a whole, and takes 0.3 to 0.4.
    jump : float
        Cycles of a store to a line beyond the private cache that no prefetcher has brought near; a
        quarter of it within.
    contested : float
        Cycles of a step at least if several cores write to its line, of arrays that fill a part of
        the last cache: moving averages of 8 columns of 524288 steps take a Cascade Lake no longer
        than if they did not, of 5, 9 and 12 columns a Zen 5, where one core takes 8, 13 and 25
        cycles, from as long to 30, 95 and 180.
    beside : float
        Cycles of a line of a strip of lanes, of arrays that the private caches hold, if another
        core stores to the lines beside the strip at the same time: what the prefetchers of each
        bring is the other's. A Cascade Lake takes 20, a Zen 4 from none to 40, as its host has
        placed the cores: sums of 128 columns of 400 steps take two of them in two strips 4.6 or
        14.5 us, in four 2.8 or 4.4, and one in whole rows 3.9.
    descending : float
        Cycles that a store waits which lies before the last one in memory, in scalar code.
    row : float
        Cycles around a row of time that its neighbours do not hide.
    forward : float
        Cycles until the load of a vector finds what the store before it has written.
    reread : float
        The same of few cells that a loop reads again at every step: 2.3 on a Zen 4, 5.7 on a
        Cascade Lake.
    call : float
        Cycles of an exponential of the C library.
    window : float
        Operations and stores that wait in a scheduler behind the oldest one: what comes after them
        does not begin. It is smaller than the window of instructions in order.
    vector_bytes : int
        Of a vector.
    nearest, private, shared : int
        Bytes of the first and second level caches of a core, and of what all cores share: so many
        that what one core copies moves half as slowly as in memory. A Cascade Lake that is shared
        with others says 36 MB, and slows down from 10 to 16.
    usable : float
        Share of what all cores share that others leave to these: of 4 of 32 MB several rows at a
        time took a Zen 4 no longer than one after the other, of 13 MB up to four times, and a Zen 5
        no longer of 32 MB.
    near_rate, private_rate, shared_rate, memory_rate : float
        Bytes per second that one core moves from and to each of them.
    shared_rates, memory_rates : float
        The same of all cores together.
    scattered_rate : float
        Of lines that no prefetcher sees coming, of one core.
    column_rate : float
        The same where it goes down one column after another, a line at every step, and waits for as
        many as it can: of 366066 columns of 20 steps a Zen 4 moves 19 GB/s, a Cascade Lake 5.
    followed : float
        Rows that a core's prefetcher follows at a time: of two inputs and an output, a Zen 4 took
        those of 4 lanes as fast as of 2, of 8 in 1.4 times, of 16 in five times as long.
    late : float
        How much longer tiles wait for memory than its rate says: they read a line of each row in
        turn. Of sums and linear recurrences of 96 rows of 60024 steps a core of a Zen 4 takes
        28 GB/s in tiles of 16 rows, 50 in vectors of time; one of a Zen 5 as much in both.
    asked : float
        How many times as long as others lines take from beyond the caches that come only since
        tiles ask for them, of rows in more pages than a prefetcher follows: a core waits for as
        many as its nearest cache can. A Cascade Lake takes 2.1 times as long, by one core and by
        two, of three arrays and of four.
    strips : float
        The share of lines beyond the caches that come one by one in strips of a few lines, of
        longer ones so many lines as of these, until a prefetcher follows: rows of 1024 cells as a
        whole take a Zen 5 2.4 ms (8 x 2048 steps), strips of 64 3.4. A Cascade Lake takes 12 ms and
        strips of 64, 128, 512 cells 20, 31, 16.
    region : float
        Bytes that the rows of a vector may cover for a prefetcher to take none for another's.
    past : float
        How many bytes of memory's rate a byte costs that is written past the caches; an ordinary
        one costs two.
    past_alone : float
        The same of one core that nobody else helps: it waits for each of these lines as long as
        memory takes. A Cascade Lake takes sums down 32 columns of 250000 steps in 8.0 ms past the
        caches, in 7.2 through them.
    wake : float
        Seconds until the pool's threads have begun and ended.
    start : float
        Seconds of a call.
    cores : int
        Of those that the rates of all were measured with.
    """

    cycle: float = 0.25e-9
    sum_latency: float = 2.0
    product_latency: float = 4.0
    fused: float = 0.0
    halves: float = 0.0
    extremum_latency: float = 4.0
    issue: float = 4.5
    vector_issue: float = 1.7
    shuffle_issue: float = 1.15
    mixed_issue: float = 2.85
    mixed_integers: float = 2.85
    narrow: float = 2.0
    integer_product: float = 4.0
    integer_extremum: float = 1.0
    apart: float = 0.65
    taken: float = 0.65
    gathers: float = 1.0
    strided: float = 1.0
    stored: float = 0.65
    tile: float = 1.0
    jump: float = 16.0
    contested: float = 40.0
    beside: float = 0.0
    descending: float = 0.55
    row: float = 13.0
    forward: float = 3.5
    reread: float = 0.65625
    call: float = 36.0
    window: float = 100.0
    vector_bytes: int = 16
    nearest: int = 48 << 10
    private: int = 2 << 20
    shared: int = 24 << 20
    usable: float = 0.25
    near_rate: float = 150e9
    private_rate: float = 90e9
    shared_rate: float = 60e9
    memory_rate: float = 24e9
    shared_rates: float = 110e9
    memory_rates: float = 58e9
    scattered_rate: float = 20e9
    column_rate: float = 20e9
    followed: float = 16.0
    late: float = 0.5
    asked: float = 1.0
    strips: float = 0.05
    region: float = 2048.0
    past: float = 1.8
    past_alone: float = 1.8
    wake: float = 1.3e-6
    start: float = 0.15e-6
    cores: int = 2

    @property
    def quotient(self) -> float:
        """Cycles between two divisions, and about a quarter of one's latency."""
        return 4.0

    def together(self, width: int) -> float:
        """Vectors of ``width`` bytes that are worked on in the time of one of 64."""
        return 1.0 if width == 64 else self.narrow

    def is_beyond(self, footprint: float) -> bool:
        """Return whether so many bytes come from memory, and not from the caches."""
        return footprint > self.usable * self.shared

    def outside(self, footprint: float, over: float = 1.0) -> float:
        """Return the share of so many bytes that costs as much as what comes from memory.

        Parameters
        ----------
        footprint : float
            Bytes of all that are passed over.
        over : float
            How many times the last cache lies between those of which nothing does and all does. A
            cache that is these cores' alone holds all of them or none.
        """
        if self.usable >= 1.0:
            return float(self.is_beyond(footprint))
        return min(1.0, max(0.0, footprint / self.shared - self.usable) / over)

    def rate(self, footprint: float, cores: float) -> float:
        """Bytes per second of cores that pass again and again over so many bytes.

        Parameters
        ----------
        footprint : float
            Bytes of all that they pass over.
        cores : float
            Cores at work, each on a part of its own.
        """
        share = max(1.0, (cores - 1) / max(1, self.cores - 1)) if self.cores > 1 else cores
        every = min(1.0, (cores - 1) / max(1, self.cores - 1))
        shared_rate = self.shared_rate + (self.shared_rates * share - self.shared_rate) * every
        # What others leave of the last cache, at one time more and at another less.
        left = (_HELD + min(_HELD, self.usable)) / 2
        levels = (
            (self.shared, shared_rate, left),
            (self.private * cores, self.private_rate * cores, _HELD),
            (self.nearest * cores, self.near_rate * cores, _HELD),
        )
        seconds = 1.0 / (self.memory_rate + (self.memory_rates - self.memory_rate) * every)
        for size, rate, held in levels:
            # What is a little larger than a cache still finds a part of itself there.
            below = min(1.0, max(0.0, footprint / size - held) / (_FOUND - held))
            seconds = below * seconds + (1.0 - below) / rate
        return 1.0 / seconds
