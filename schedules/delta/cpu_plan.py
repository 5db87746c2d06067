"""The schedule of a delta rule on a CPU: tasks with some columns of a state walk time.

``cpu`` builds it, a few steps at once (``few_steps``), and ``walk`` has its cost. Fewer columns
make more tasks, of which each repeats what all columns share; so do segments of time (``time_cut``,
``cpu_carries``), which are passed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.cpu.vector_math import has_transcendentals
from tvm_scan.schedules.delta.cpu import build_delta, pairs_of
from tvm_scan.schedules.delta.cpu_carries import build_carries
from tvm_scan.schedules.delta.time_cut import (
    build_passes,
    check_chunks,
    chunk_counts,
    picture_of,
    why_wasteful,
)
from tvm_scan.schedules.delta.walk import (
    STEPS,
    column_counts,
    cut_cost,
    shape_of_rule,
    vectors_of,
    walk_cost,
)
from tvm_scan.schedules.machine.cpu_cost import CpuCost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture, Serial
from tvm_scan.schedules.plan import ScanPlan

#: Most columns of a task, and steps at once.
_MOST_COLUMNS, _MOST_STEPS = 256, 8
#: Most products of the steps at once with what those before them wrote: all are in the code.
_PAIRS = 24


@dataclass(frozen=True)
class DeltaWalk(ScanPlan):
    """Tasks that each walk time with some columns of one state.

    Attributes
    ----------
    columns : int
        Most columns of a task.
    steps : int
        Steps at once.
    strip : int
        Columns whose sums are in registers.
    vector : int
        Cells of a vector.
    threads : bool
        Whether tasks go to other threads, which have to be woken.
    ldexp : bool
        Whether polynomials scale by powers of two in one instruction, which AVX-512 has.
    chunks : int
        Segments of time that are passed at once (``time_cut``), for few states; 0 for none.
    """

    device: ClassVar[str] = "cpu"
    algorithm: ClassVar[str] = "delta_walk"
    takes: ClassVar[tuple[type[TimeLoop], ...]] = (DeltaRule,)

    columns: int = 32
    steps: int = STEPS
    strip: int = 8
    vector: int = 8
    threads: bool = False
    ldexp: bool = False
    chunks: int = 0

    def check_fit(self, recurrence: DeltaRule, machine: Machine) -> None:
        """Check sizes, and what only some processors have."""
        self.require(
            1 <= self.columns <= _MOST_COLUMNS,
            f"1 to {_MOST_COLUMNS} columns of a task",
            f"columns={self.columns}",
            "use 32",
        )
        self.require(
            self.vector in (1, 2, 4, 8, 16),
            "vectors of 1, 2, 4, 8 or 16 cells",
            f"vector={self.vector}",
            f"use {vectors_of(machine, tir.byte_size(recurrence.dtype))[0]}",
        )
        self.require(
            self.vector <= self.strip <= _MOST_COLUMNS and self.strip % self.vector == 0,
            f"a strip of whole vectors of {self.vector}, at most {_MOST_COLUMNS} columns",
            f"strip={self.strip}",
            f"use {self.vector}",
        )
        most = max_steps(recurrence)
        self.require(
            1 <= self.steps <= most,
            f"1 to {most} steps at once, since a step of this rule has {pairs_of(recurrence)} "
            "products with every earlier one",
            f"steps={self.steps}",
            f"use {default_steps(recurrence)}",
        )
        self.require(
            not self.ldexp or machine.ldexp,
            "a target with AVX-512 for ldexp",
            machine.processor,
            "leave ldexp at False",
        )
        check_chunks(self, recurrence, self.chunks)

    def build(self, recurrence: DeltaRule) -> Built:
        """Return the tasks."""
        return build_passes(
            recurrence,
            self.chunks,
            self.steps,
            lambda rule: build_delta(rule, self),
            lambda cut: build_carries(recurrence, cut, self),
        )

    def why_wasteful(self, steps: int) -> str | None:
        """Say so where chunks of time have fewer steps than are taken at once."""
        return why_wasteful(self.chunks, self.steps, steps)

    def cost(self, recurrence: DeltaRule, machine: Machine, steps: int | None = None) -> CpuCost:
        """Predict the time; threads wake as fast as they do between calls that follow soon."""
        shape = shape_of_rule(recurrence, steps)
        if self.chunks:
            joins = float(self.threads)
            return cut_cost(shape, machine, self.columns, self.steps, joins, self.chunks)
        return walk_cost(shape, machine, self.columns, self.steps, float(self.threads))

    @classmethod
    def space(cls, recurrence: DeltaRule, machine: Machine) -> Iterator[Branch]:
        """Yield columns, steps, strips and vectors, on one thread or on all."""
        base = cls._base(recurrence, machine)
        steps = tuple(n for n in (1, 2, 4, 8) if n <= max_steps(recurrence))
        vectors = tuple(n for n in (base.vector // 2, base.vector) if n)
        strips = tuple(base.vector * n for n in (1, 2, 4))
        columns = tuple(column_counts(int(recurrence.columns.extent)))
        choices = (("columns", columns), ("steps", steps), ("strip", strips), ("vector", vectors))
        threads = _threads(recurrence, machine)
        yield Branch(base, (*choices, ("threads", threads)))
        if counts := _chunk_counts(recurrence, machine):
            cut = base.with_(threads=True, chunks=counts[0])
            yield Branch(cut, (*choices, ("chunks", counts)))

    @classmethod
    def shortlist(cls, recurrence: DeltaRule, machine: Machine) -> Iterator[ScanPlan]:
        """Yield every number of columns, with the steps and strips that were fastest so far."""
        base = cls._base(recurrence, machine)
        for columns in column_counts(int(recurrence.columns.extent)):
            for threads in _threads(recurrence, machine):
                yield base.with_(columns=columns, threads=bool(threads))
            if tir.as_int(recurrence.time.extent) is None:  # which may be a single step
                continue
            for chunks in _chunk_counts(recurrence, machine):
                plan = base.with_(columns=columns, threads=True, chunks=chunks)
                if plan.fits(recurrence, machine):
                    yield plan

    @classmethod
    def _base(cls, recurrence: DeltaRule, machine: Machine) -> DeltaWalk:
        vector, strip = vectors_of(machine, tir.byte_size(recurrence.dtype))
        ldexp = machine.ldexp and has_transcendentals(recurrence)
        return cls(steps=default_steps(recurrence), strip=strip, vector=vector, ldexp=ldexp)

    def picture(self, recurrence: DeltaRule) -> Picture:
        """Return tasks that walk."""
        where = "on the threads of the pool" if self.threads else "on the calling thread"
        tasks = f"{self.columns} columns of a state, {where}"
        note = f"({self.steps} at once; sums of {self.strip} columns in registers)"
        return picture_of(self.chunks, ("tasks", tasks), Serial("lane", "task", note))


def max_steps(rule: DeltaRule) -> int:
    """Return how many steps a plan may take at once."""
    return max(1, min(_MOST_STEPS, _PAIRS // max(1, pairs_of(rule))))


def default_steps(rule: DeltaRule) -> int:
    """Return how many steps a default takes at once."""
    return next((n for n in (STEPS, STEPS // 2) if n <= max_steps(rule)), 1)


def _threads(rule: DeltaRule, machine: Machine) -> tuple[int, ...]:
    """Values of `threads`; of lanes that are not known there may be many."""
    if machine.cores == 1:
        return (0,)
    return (0, 1) if all(tir.as_int(axis.extent) is not None for axis in rule.lanes) else (1,)


def _chunk_counts(rule: DeltaRule, machine: Machine) -> tuple[int, ...]:
    """Values of `chunks` where there are cores for them."""
    return chunk_counts(rule) if machine.cores > 1 else ()
