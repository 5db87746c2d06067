"""Cost of a plan on a CPU: counts of its schedule, and seconds of them on a machine."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, sqrt

from tvm_scan.schedules.machine.cost import Cost
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.machine import Machine

#: Share of the smaller of two bounds that is not hidden behind the larger, and the same of what the
#: private caches hold: sums of 64 x 128 take a Zen 4 1.07 cycles a step, whose stores are 1.04.
_NOT_HIDDEN, _NEAR = 0.45, 0.3
#: The same of what one core goes through in order, and the last cache holds. Sums down 64 and 100
#: columns of 4 bytes take a Zen 4 from 1 to 8 MB as long as that takes, or a little longer, as
#: maxima and averages do (40 cases).
_IN_ORDER = 0.05
#: How much of what one private cache could hold lies in another one as a call begins: all of it
#: after one core has made it, nothing if the same cores have, as kernels of the same pool mostly
#: do. (Strips of 0.3 to 1 MB, called again and again, take two cores of a Zen 4 0.6 of what a half
#: would cost: averages of 3244 columns of 38 steps 6.3 us, the loop 15.)
_ELSEWHERE = 0.25
#: Wakes that a plan which needs any may take beside. One takes the least, which is measured, or up
#: to three times as long, as the system has put the threads: in two of three processes on a Zen 5
#: 0.75 us, else 2.0.
_UNSURE_WAKES = 2.0


@dataclass(frozen=True)
class CpuWork:
    """Work of a plan, before it is known how fast.

    Attributes
    ----------
    cycles : float
        Of instructions and chains, of all tasks together.
    tasks : float
        Independent tasks that share them.
    joins : float
        Times that the pool is woken and waited for; none in a loop on one core.
    moved : float
        Bytes from and to where the arrays lie, a line that is written counted twice.
    past : float
        Bytes written past the caches.
    scattered : float
        Bytes of lines that no prefetcher sees coming.
    alone : float
        Cycles of one core while the others wait.
    footprint : float
        Bytes of all that is passed over.
    contested : float
        Cycles more of all tasks together if they run on several cores.
    short : float
        Cycles by which the first task is shorter than each of the others.
    in_order : float
        Share of the bytes through which one core goes cell by cell, so that they come as it works.
    """

    cycles: float
    tasks: float
    joins: float
    moved: float
    past: float = 0.0
    alone: float = 0.0
    scattered: float = 0.0
    footprint: float = 0.0
    contested: float = 0.0
    short: float = 0.0
    in_order: float = 0.0

    def __add__(self, other: CpuWork) -> CpuWork:
        return CpuWork(
            self.cycles + other.cycles,
            max(self.tasks, other.tasks),
            self.joins + other.joins,
            self.moved + other.moved,
            self.past + other.past,
            self.alone + other.alone,
            self.scattered + other.scattered,
            max(self.footprint, other.footprint),
            self.contested + other.contested,
            self.short + other.short,
            min(self.in_order, other.in_order),
        )


@dataclass(frozen=True)
class CpuCost(Cost):
    """The prediction for one plan.

    Attributes
    ----------
    past, scattered : float
        Of the bytes, those that are written past the caches, and those of lines that no prefetcher
        sees coming.
    busy, memory, alone, pool : float
        Bounds in seconds: of cycles and of bytes, which overlap; of one core while the others wait;
        of the call and the pool.
    unsure : float
        Seconds that the pool may take beside.
    around : float
        Seconds that a kernel may take around its blocks, where it is compared with the loop.
    """

    past: float
    scattered: float
    busy: float
    memory: float
    alone: float
    pool: float
    unsure: float
    around: float = 0.0

    @property
    def ranked(self) -> float:
        """The seconds by which plans are compared: amid those of quick threads and of slow ones.

        By the geometric mean as much is lost at most, as a ratio, by threads that wake slowly as by
        none that would have waked quickly.
        """
        return sqrt(self.seconds * (self.seconds + self.unsure)) + self.around


def cpu_cost(work: CpuWork, machine: Machine) -> CpuCost:
    """Predict what a plan takes.

    Parameters
    ----------
    work : CpuWork
        What its schedule counts.
    machine : Machine
        Where.
    """
    chip, cores = machine.chip, machine.cores
    used = min(float(cores), work.tasks) if work.joins else 1.0
    cycles = work.cycles + (work.contested if used > 1 else 0.0)
    busy, memory = cycles / used, _memory_seconds(work, chip, used)
    if used > 1 and cycles > 0 and work.tasks < 16 * used:
        # The first cores have most tasks; while the last ones run, fewer cores bring lines.
        each, most = (cycles + work.short) / work.tasks, ceil(work.tasks / used)
        busy = max(most * each - work.short, min(most, work.tasks - most) * each)
        left = work.tasks % used
        late = left * each - work.short if left else (used - 1.0) * work.short
        fewer = _memory_seconds(work, chip, max(1.0, left or used - 1.0))
        memory += min(1.0, max(0.0, late) / cycles) * (fewer - memory)
    busy *= chip.cycle
    if work.footprint <= chip.private:
        # Who made the arrays, or used them last, has them in a cache of its own.
        memory += _ELSEWHERE * work.footprint * (1 - 1 / used) / chip.private_rate
    alone = work.alone * chip.cycle
    # What one core does alone goes on while memory brings lines; of caches it waits for them.
    beside, after = (alone, 0.0) if chip.is_beyond(work.footprint) else (0.0, alone)
    less, more = sorted((busy + beside, memory))
    shown = _NEAR if work.footprint <= chip.private * used else _NOT_HIDDEN
    if work.footprint > chip.private and not chip.is_beyond(work.footprint):
        shown += work.in_order * (_IN_ORDER - shown)
    # A pool of one thread wakes nobody.
    wake = chip.wake if cores > 1 else 0.0
    pool = chip.start + work.joins * (wake + machine.counting)
    return CpuCost(
        # Bounds of like size are not met together.
        seconds=pool + after + more + shown * less,
        bytes=work.moved + work.past + work.scattered,
        work=work.cycles + work.alone,
        tasks=work.tasks,
        waits=work.joins,
        past=work.past,
        scattered=work.scattered,
        busy=busy,
        memory=memory,
        alone=alone,
        pool=pool,
        unsure=_UNSURE_WAKES * wake if work.joins else 0.0,
    )


def _memory_seconds(work: CpuWork, chip: CpuChip, used: float) -> float:
    """Seconds in which so many cores bring and take away all bytes."""
    past = chip.past if used > 1 else chip.past_alone
    return (
        work.moved / chip.rate(work.footprint, used)
        + work.scattered / (chip.scattered_rate * used)
        + work.past * past / chip.rate(inf, used)
    )
