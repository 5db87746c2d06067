"""Decisions that plans of CPUs have in common: the code of several schedules reads them.

A value here stands for every schedule in which it is no decision; a schedule whose decision it is
has a field of that name.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from math import log2
from typing import Any, ClassVar

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.branch import Branch, Choices, powers
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.cpu.cost.step import Step, step_of, with_halves
from tvm_scan.schedules.cpu.line_stores import takes_line_stores
from tvm_scan.schedules.cpu.time_runs import RUN
from tvm_scan.schedules.cpu.vector_math import has_transcendentals
from tvm_scan.schedules.cpu.vector_values import takes_time_vectors
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_cost import CpuCost, CpuWork, cpu_cost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import VectorScan
from tvm_scan.schedules.plan import Plan, ScanPlan

#: Lanes of one vector operation; TVM splits it into what the machine has.
VECTOR = 32
#: Fewest steps in a chunk that are worth a task of their own.
_LEAST_CHUNK = 16
#: Bytes of a page, where the guesses of a prefetcher end, and of a way of the nearest cache, whose
#: sets are found before the page of an address is.
PAGE_BYTES = 4096
#: Pages ahead of which vectors of time ask, and steps of a row from which on they do: sums of 64
#: rows of 2^18 numbers take a Zen 5 1.23 times as long as copying them if they do not ask, 1.09 if
#: four pages ahead, and 1.06 if two; one row of 2^24 1.31 to 1.38, 1.16 to 1.27 and 1.15 to 1.29.
AHEAD, _LONG = 2, 1 << 14
#: Whether cells hold runs -> steps of a vector.
_SHAPES = ((False, (4, 8, 16, 32)), (True, (16, 32, 64)))


#: Seconds that a kernel may take around its blocks of lanes beside what is counted: linear
#: recurrences of 8 batches of 16 lanes of 16 steps take a Zen 4 0.38 us in blocks of 16, the loop
#: 0.33. (Vectors of time take none: sums of 64 steps 0.29, the loop 0.39.)
_AROUND = 30e-9
#: Cells of a block of short rows that is written out, and operations of one.
_WRITTEN_OUT, _FEW_OPERATIONS = 128, 2


class CpuPlan(ScanPlan):
    """A plan of a CPU.

    Attributes
    ----------
    lane_block : int
        Lanes or chunks that advance together, in a vector or interleaved.
    vectorize : bool
        Whether the lanes of a block are cells of vectors (else they are interleaved).
    time_vector : int
        Steps of time that are the cells of a vector, scanned by shuffles; 0 for none.
    time_runs : bool
        Every cell of a vector scans a run of 4 neighbouring steps before the cells meet; a vector
        of steps is 4 vectors of the machine.
    transpose : bool
        Vectors of lanes read and write rows along time in tiles, transposed in registers.
    prefetch : int
        How far ahead lines are asked for: tiles of ``transpose``, pages of ``PAGE_BYTES`` of
        ``time_vector``, else steps of neighbouring lanes; 0 for what the CPU guesses.
    chunks : int
        Of a lane, each a task; 0 for none.
    cache_steps : int
        Steps of a lane that go through the phases before the next ones, so that the replay reads
        from the cache; 0 for all at once.
    nontemporal : bool
        Whole cache lines of the output are stored past the caches.
    ldexp : bool
        The polynomials scale by powers of two in one instruction, which AVX-512 has.
    library_math : bool
        Keep the C library's ``exp`` and ``log`` in vector loops, one value at a time, instead of
        polynomials of at most 4 ulp.
    """

    device: ClassVar[str] = "cpu"
    lane_block: int = 1
    vectorize: bool = False
    time_vector: int = 0
    time_runs: bool = False
    transpose: bool = False
    prefetch: int = 0
    chunks: int = 0
    cache_steps: int = 0
    nontemporal: bool = False
    ldexp: bool = False
    library_math: bool = False

    def combines(self, steps: int) -> float:
        """Combinations of a scan by doubling distances in every vector, and of a reduction."""
        reduced = steps + self.chunks if self.chunks else 0
        levels = log2(self.time_vector) if self.time_vector else 0
        if self.time_runs:
            # Runs of steps meet once for as many vectors.
            levels = (RUN - 1 + log2(self.time_vector / RUN)) / RUN + 1
        return reduced + levels * steps

    @abstractmethod
    def work(self, step: Step, chip: CpuChip) -> CpuWork:
        """Count what the plan does."""

    def cost(self, recurrence: Recurrence, machine: Machine, steps: int | None = None) -> CpuCost:
        """Predict the time."""
        step = step_of(recurrence, steps)
        work = self.work(step, with_halves(step, machine.chip))
        cost = cpu_cost(work, machine)
        in_blocks = not (self.keeps_loop or self.time_vector)
        return replace(cost, around=_AROUND) if in_blocks else cost

    def check_block(self) -> None:
        """Check how many lanes or chunks advance together."""
        most = 4096 if self.vectorize else 64
        self.require(
            1 <= self.lane_block <= most,
            f"1 to {most} lanes per block",
            f"lane_block={self.lane_block}",
            "use 4 interleaved lanes, or 32 in vectors",
        )
        self.require(
            self.lane_block <= 32 or self.lane_block % 32 == 0,
            "a multiple of 32 lanes in a wide block",
            f"lane_block={self.lane_block}",
            f"use {max(32, self.lane_block // 32 * 32)}",
        )

    def check_vectors(self, recurrence: Recurrence) -> None:
        """Check vectors of time, and how far ahead they or tiles ask for lines."""
        self.require(
            self.prefetch == 0
            or (0 < self.prefetch <= 16 and bool(self.vectorize or self.time_vector)),
            "prefetch from 1 to 16 tiles or pages ahead, or steps, with vectorize or time_vector",
            f"prefetch={self.prefetch}, vectorize={self.vectorize}, time_vector={self.time_vector}",
            "leave prefetch at 0",
        )
        if self.time_vector == 0:
            self.require(
                not self.time_runs,
                "vectors of time for time_runs",
                "time_vector=0",
                "leave time_runs at False",
            )
            return
        self.require(
            self.time_vector in (4, 8, 16, 32, 64),
            "4, 8, 16, 32 or 64 steps in a vector of lanes or three_phase",
            f"time_vector={self.time_vector}",
            "leave it at 0, or use 16",
        )
        self.require(
            self.time_vector >= 16 or not self.time_runs,
            "16, 32 or 64 steps in 4 vectors for time_runs",
            f"time_vector={self.time_vector}",
            "leave time_runs at False",
        )
        self.require(
            self.lane_block == 1 and not self.vectorize,
            "one lane at a time where a vector holds steps",
            f"lane_block={self.lane_block}, vectorize={self.vectorize}",
            "leave lane_block at 1",
        )
        self.require(
            takes_time_vectors(recurrence),
            "one level of carries of one cell, whose operators exist on vectors",
            ", ".join(algebra.name for algebra in recurrence.algebras),
            "leave time_vector at 0",
        )

    def check_instructions(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check what only some targets have: vectors, stores past the caches, powers of two."""
        self.require(
            machine.device.vector_bits > 0
            or not (self.vectorize or self.time_vector or self.transpose),
            "a target in whose code TVM writes vectors",
            machine.device.name,
            "leave vectorize and transpose at False and time_vector at 0, or compile for llvm",
        )
        self.require(
            not self.ldexp or machine.ldexp,
            "a target with AVX-512 for ldexp",
            machine.processor,
            "leave ldexp at False",
        )
        if not self.nontemporal:
            return
        self.require(
            machine.line_stores,
            "a target with AVX for stores past the caches",
            machine.processor,
            "leave nontemporal at False",
        )
        self.require(
            bool(self.vectorize or self.time_vector),
            "vectors of lanes or of time",
            f"vectorize={self.vectorize}, time_vector={self.time_vector}",
            "leave nontemporal at False",
        )
        axes = [recurrence.time.var, *(lane.var for lane in recurrence.lanes[-1:])]
        along = axes[0] if self.time_vector or self.transpose else axes[-1]
        self.require(
            takes_line_stores(recurrence, along) or self.transpose,
            "outputs whose vectors are neighbours in memory",
            "none",
            "leave nontemporal at False",
        )

    def drawn_vector(self) -> VectorScan:
        """Return the drawing of a vector of time."""
        run = RUN if self.time_runs else 1
        return VectorScan(self.time_vector // run, run)


def rest_blocks(plan: CpuPlan, rest: int) -> list[int]:
    """Lanes of the blocks for so many that a plan's full ones leave.

    Tiles have some multiple of 16 rows. All others are one block, which goes through the steps
    once.
    """
    tiled = rest // 16 * 16 if plan.transpose else 0
    return [size for size in (tiled, rest - tiled) if size]


def lane_vectors(step: Step, lanes: int, widest: int = VECTOR) -> list[tuple[int, int]]:
    """Vectors of a block's lanes: how many of each length.

    What the widest ones leave are vectors of 16, 8 and 4 lanes, and one of up to three. Of other
    lengths LLVM makes the next power of two, through memory where the target's vectors are shorter:
    sums of 12 rows of 1000 integers take a Zen 4 6.6 us in one vector under AVX2, and 3.6 in 8 and
    4; linear recurrences of 12 columns without AVX 4.0 and 1.9, with AVX-512 of 15 columns 2.1 and
    1.8. What hides the waits of states and polynomials in longer vectors stays together, but for
    whole lines of the widest cells: selective scans of 27 channels of 1000 steps take 192 us in one
    vector, 228 in two, log-sum-exps of 15 rows without AVX 1.3 times as long in three as in one.
    """
    shorter: tuple[int, ...] = (16, 8, 4)
    if step.state:
        shorter = ()
    elif step.transcendental:
        shorter = (tir.LINE_BYTES // max((access.size for access in step.accesses), default=4),)
    vectors, left = [], lanes
    for size in (widest, *shorter):
        count, left = divmod(left, size)
        vectors.append((count, size))
    return [(count, size) for count, size in (*vectors, (1, left)) if count and size]


def writes_out(step: Step, lanes: int) -> bool:
    """Return whether a block of vectors of short rows is written out, step after step.

    The compiler then reads and writes neighbouring steps of a row together, and turns them into
    vectors of lanes by shuffles. It unrolls fewer steps by itself, and none backwards. Sums of 8000
    rows of 12 to 31 steps take a Zen 4 in vectors of 4 lanes 0.7 of the time, filters of order two
    0.8, linear recurrences 0.9; in those of 8 lanes the same up to 16 steps, under AVX2 and without
    it too; backwards 0.5 to 0.8. Restarts, resets, clamped sums, halves and products of integers
    gain nothing; of more cells recurrences lose up to 1.2.
    """
    body = step.body
    plain = not (step.guarded or step.state or step.transcendental or body.halves or body.products)
    few = body.operations <= _FEW_OPERATIONS and lanes * step.length <= _WRITTEN_OUT
    return bool(step.rows_apart) and plain and few and lanes > 1


def has_ldexp(machine: Machine, recurrence: Recurrence) -> bool:
    """Return whether polynomials scale by powers of two in one instruction."""
    return machine.ldexp and has_transcendentals(recurrence)


def past_caches(machine: Machine, recurrence: Recurrence, along: Any) -> Choices:
    """The choice to store past the caches, where the target can and the stores are neighbours."""
    takes = machine.line_stores and takes_line_stores(recurrence, along)
    return (("nontemporal", (0, 1)),) if takes else ()


def chunk_counts(machine: Machine, recurrence: Recurrence) -> tuple[int, ...]:
    """Chunks of time that are worth a task each."""
    most = min(4096, known_extent(recurrence.time.extent) // _LEAST_CHUNK)
    by_core = {machine.cores * k for k in (1, 2, 4, 8)}
    return tuple(sorted(c for c in {*powers(2, 4096), *by_core} if 2 <= c <= most))


def vector_plans(base: Plan, recurrence: Recurrence) -> list[Plan]:
    """Vectors of time of every width, with runs of steps in every cell or without."""
    if not takes_time_vectors(recurrence):
        return []
    return [base.with_(time_vector=w, time_runs=runs) for runs, widths in _SHAPES for w in widths]


def pages_ahead(machine: Machine, recurrence: Recurrence) -> int:
    """Pages ahead of which a default's vectors of time ask for what they read; 0 for none.

    Of several arrays they ask in vain: linear recurrences of 300 rows of 40000 steps take a Zen 5
    2.18 ms, and 2.31 if they ask.
    """
    read = [a for a in step_of(recurrence).accesses if not a.store and a.along_time in (1, -1)]
    return AHEAD if len(read) == 1 and _may_ask(machine, recurrence) else 0


def _may_ask(machine: Machine, recurrence: Recurrence) -> bool:
    """Return whether rows are long, and beyond the caches."""
    step = step_of(recurrence)
    return machine.chip.is_beyond(step.touched) and step.length >= _LONG


def vector_branches(
    base: CpuPlan, machine: Machine, recurrence: Recurrence, choices: Choices
) -> list[Branch]:
    """Steps of time in vectors, with runs of steps in every cell or without.

    Parameters
    ----------
    base : CpuPlan
        With the decisions of its schedule.
    machine, recurrence
        Of the target; what runs.
    choices : tuple
        What its schedule leaves open.
    """
    if not takes_time_vectors(recurrence):
        return []
    past = past_caches(machine, recurrence, recurrence.time.var)
    ahead = (("prefetch", (0, AHEAD)),) if _may_ask(machine, recurrence) else ()
    branches = []
    for runs, widths in _SHAPES:
        plan = base.with_(
            time_vector=widths[0], time_runs=runs, ldexp=has_ldexp(machine, recurrence)
        )
        branches.append(Branch(plan, (*choices, ("time_vector", widths), *ahead, *past)))
    return branches
