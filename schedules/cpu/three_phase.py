"""The schedule of three phases: chunks of time are reduced, their elements scanned, replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import chunks_too_short, known_extent
from tvm_scan.schedules.cpu.chunks import ChunkPhases
from tvm_scan.schedules.cpu.cost.chunks import held_steps, three_phase_work
from tvm_scan.schedules.cpu.cost.step import Step, step_of
from tvm_scan.schedules.cpu.plans import (
    AHEAD,
    CpuPlan,
    chunk_counts,
    has_ldexp,
    pages_ahead,
    vector_branches,
    vector_plans,
)
from tvm_scan.schedules.cpu.vector_chunks import VectorPhases
from tvm_scan.schedules.machine.cpu_chip import CpuChip
from tvm_scan.schedules.machine.cpu_cost import CpuWork
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Chunks, Picture

#: Steps of a tile that goes through the three phases in the cache.
_TILES = (1 << 16, 1 << 17, 1 << 18, 1 << 19)
#: Steps of a vector that a default takes through such tiles.
_WIDE = 32
#: Steps of a lane below which no chunks of vectors are compared.
_LEAST_SHARED = 1 << 13
#: The same of a chunk of steps one by one, and of steps that call the C library.
_LEAST_OF_STEPS, _LEAST_OF_CALLS = 256, 32


@dataclass(frozen=True)
class ThreePhase(CpuPlan):
    """Chunks of time are reduced to elements, the elements are scanned, the chunks replayed.

    Attributes
    ----------
    lane_block : int
        Chunks that are interleaved in a task.
    chunks, time_vector, time_runs, prefetch, cache_steps, nontemporal, ldexp, library_math
        See ``CpuPlan``.
    """

    algorithm: ClassVar[str] = "three_phase"
    lane_block: int = 1
    chunks: int = 0
    time_vector: int = 0
    time_runs: bool = False
    prefetch: int = 0
    cache_steps: int = 0
    nontemporal: bool = False
    ldexp: bool = False
    library_math: bool = False

    @property
    def step_passes(self) -> int:
        """Chunks are reduced and replayed."""
        return 2

    @property
    def kind(self) -> tuple[Any, ...]:
        """Steps one by one, or vectors of time."""
        return self.device, self.algorithm, self.time_vector > 0

    def check_fit(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check chunks, vectors, and what the processor has."""
        self.check_block()
        self.require(
            2 <= self.chunks <= 4096,
            "2 to 4096 chunks",
            f"chunks={self.chunks}",
            "use a few chunks per core",
        )
        self.require(
            self.chunks % self.lane_block == 0,
            "chunks divisible by lane_block",
            f"chunks={self.chunks}, lane_block={self.lane_block}",
            "round chunks up to a multiple of lane_block",
        )
        self.check_vectors(recurrence)
        self.require(
            self.cache_steps == 0 or self.time_vector > 0,
            "vectors of time for cache_steps",
            f"cache_steps={self.cache_steps}, time_vector=0",
            "leave cache_steps at 0",
        )
        self.require(
            self.cache_steps == 0 or 1024 <= self.cache_steps <= 1 << 30,
            "tiles of 1024 to 2^30 steps, in three_phase",
            f"cache_steps={self.cache_steps}",
            "leave cache_steps at 0",
        )
        self.check_instructions(recurrence, machine)

    def build(self, recurrence: Recurrence) -> Built:
        """Return a reduction and a scan for each level of carries, and the replay."""
        phases = VectorPhases if self.time_vector else ChunkPhases
        return phases(recurrence, self).build()

    def why_wasteful(self, steps: int) -> str | None:
        """Say so of chunks of a few steps, which cost more than they share out."""
        return chunks_too_short(self.chunks, steps)

    def work(self, step: Step, chip: CpuChip) -> CpuWork:
        """Count what the plan does."""
        return three_phase_work(self, step, chip)

    @classmethod
    def space(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Branch]:
        """Yield chunks whose steps are taken one by one, and in vectors of time."""
        chunks = chunk_counts(machine, recurrence)
        if not chunks:
            return
        widths = tuple(w for w in (1, 2, 4, 8) if w <= chunks[-1])
        base = cls(chunks=chunks[0])
        yield Branch(base, (("chunks", chunks), ("lane_block", widths)))
        tiles = _tiles_of(known_extent(recurrence.time.extent))
        cached = (("cache_steps", (0, *tiles)),) if tiles else ()
        yield from vector_branches(base, machine, recurrence, (("chunks", chunks), *cached))

    @classmethod
    def shortlist(cls, recurrence: Recurrence, machine: Machine) -> Iterator[ThreePhase]:
        """Yield chunks for few lanes on several cores: vectors of time, then steps one by one."""
        step, cores = step_of(recurrence), machine.cores
        if cores < 2:
            return
        past = (False, True) if machine.line_stores else (False,)
        if step.rows < 2 * cores and step.length >= _LEAST_SHARED:
            pages = pages_ahead(machine, recurrence)
            base = cls(ldexp=has_ldexp(machine, recurrence), prefetch=pages)
            vectors = vector_plans(base, recurrence)
            for plan, chunks, line in product(vectors, (cores, 4 * cores), past):
                yield plan.with_(chunks=chunks, nontemporal=line)
            tile = _tile_of(step, machine)
            # Of the longest vectors alone, since a choice takes no longer than some milliseconds.
            wide = [plan for plan in vectors if plan.time_vector >= _WIDE] if tile else []
            for plan, line in product(wide, past):
                yield plan.with_(chunks=cores, nontemporal=line, cache_steps=tile, prefetch=AHEAD)
        least = _LEAST_OF_CALLS if step.transcendental else _LEAST_OF_STEPS
        if step.rows < 4 * cores and step.length >= least * 4 * cores:
            # As many chunks side by side as hide a chain of products: linear recurrences of 2^19
            # steps of 8 bytes take a Zen 4 without AVX 215 us by 8, 243 by 4, 315 in vectors.
            for chunks, streams in ((4, 1), (4, 4), (8, 8)):
                yield cls(chunks=chunks * cores, lane_block=streams)

    def picture(self, recurrence: Recurrence) -> Picture:
        """Return chunks and, where steps are vectors, a vector."""
        cut = f"{self.chunks} chunks per lane"
        if not self.time_vector:
            cores = ("cores", f"{cut}, {self.lane_block} interleaved in a task")
            return Picture((cores,), (Chunks(self.chunks),))
        cores = ("cores", f"{cut}; {self.time_vector} steps of a chunk at a time")
        return Picture((cores,), (Chunks(self.chunks), self.drawn_vector()))


def _tiles_of(length: int) -> tuple[int, ...]:
    """Steps of the tiles of which a lane has two at least."""
    return tuple(n for n in _TILES if 2 * n <= length)


def _tile_of(step: Step, machine: Machine) -> int:
    """Steps of the tiles of a lane beyond the caches; 0 for none."""
    if not machine.chip.is_beyond(step.touched):
        return 0
    most = held_steps(machine.cores, step, machine.chip, ahead=True)
    return max((n for n in _tiles_of(step.length) if n <= most), default=0)
