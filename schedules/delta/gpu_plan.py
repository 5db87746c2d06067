"""The schedule of a delta rule on a GPU: a block takes chunks of steps for some columns of a state.

``gpu`` builds it. Everything of a chunk is in shared memory, by which its steps are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import known_extent, known_rows
from tvm_scan.schedules.delta.gpu import build_delta_blocks, shared_bytes
from tvm_scan.schedules.delta.gpu_block import COLUMNS
from tvm_scan.schedules.delta.gpu_carries import build_carries
from tvm_scan.schedules.delta.gpu_cost import blocks_work, cut_work
from tvm_scan.schedules.delta.time_cut import (
    TimeCut,
    arrays_of,
    check_chunks,
    chunk_counts,
    describe_chunks,
    why_wasteful,
)
from tvm_scan.schedules.machine.gpu_cost import Block, GpuCost, gpu_cost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Chunks, Picture, Serial
from tvm_scan.schedules.plan import ScanPlan

__all__ = ["DeltaBlocks"]

#: Steps of a chunk, the most first; threads of a block, those of a default first.
_STEPS, _THREADS = (16, 8, 4), (128, 64, 256)
#: Bytes that a thread has under way: a cell of every vector.
_WAITING = 16.0


@dataclass(frozen=True)
class DeltaBlocks(ScanPlan):
    """A block for 32 columns of a state, which takes chunks of steps as products of matrices.

    Attributes
    ----------
    steps : int
        Of a chunk.
    threads_per_block : int
        Threads of a block: whole warps.
    chunks : int
        Segments of time that are passed at once (``time_cut``), for few states; 0 for none.
    """

    device: ClassVar[str] = "cuda"
    algorithm: ClassVar[str] = "delta_blocks"
    takes: ClassVar[tuple[type[TimeLoop], ...]] = (DeltaRule,)

    steps: int = 16
    threads_per_block: int = 128
    chunks: int = 0

    def check_fit(self, recurrence: DeltaRule, machine: Machine) -> None:
        """Check the block against the device."""
        device = machine.device
        self.require(
            self.steps in _STEPS,
            f"chunks of {', '.join(map(str, sorted(_STEPS)))} steps",
            f"steps={self.steps}",
            "use 8",
        )
        self.require(
            self.threads_per_block in _THREADS and self.threads_per_block <= machine.threads,
            f"blocks of 64, 128 or 256 threads, of which {device.name} has up to {machine.threads}",
            f"threads_per_block={self.threads_per_block}",
            "use 128, or run the loop as it was written",
        )
        check_chunks(self, recurrence, self.chunks)
        arrays = self._arrays(recurrence)
        self.require(
            arrays <= device.buffers,
            f"at most {device.buffers} buffers in a kernel of {device.name}",
            f"{arrays}",
            "run its loop as it was written",
        )
        size = self.shared_bytes(recurrence)
        self.require(
            size <= machine.shared_bytes,
            f"a chunk of {self.steps} steps to fit into the {machine.shared_bytes} bytes of shared "
            "memory of a block",
            f"that it takes {size}",
            f"use fewer steps, at least {_STEPS[-1]}, or run its loop as it was written",
        )

    def _arrays(self, recurrence: DeltaRule) -> int:
        """Most arrays of a kernel."""
        if not self.chunks:
            arrays = [*recurrence.inputs, *recurrence.outputs]
            return len(tir.VarMap((array, True) for array in arrays))
        # The one between the segments has the states, their maps, and what is stored after time.
        passes = TimeCut.of(recurrence, self.chunks, self.steps).passes
        between = 4 + len(recurrence.finish)
        return max(between, *(len(arrays_of(one)) for one in passes))

    def shared_bytes(self, recurrence: DeltaRule) -> int:
        """Bytes of everything of a chunk."""
        return shared_bytes(recurrence, self.steps)

    @property
    def has_barriers(self) -> bool:
        """Return True: the phases of a chunk wait for each other."""
        return True

    def build(self, recurrence: DeltaRule) -> Built:
        """Return the grid."""
        steps, threads = self.steps, self.threads_per_block
        if not self.chunks:
            return Built([build_delta_blocks(recurrence, steps, threads)], [])
        cut = TimeCut.of(recurrence, self.chunks, steps)
        nests = [
            build_delta_blocks(cut.effects, steps, threads),
            build_delta_blocks(cut.maps, steps, threads),
            build_carries(recurrence, cut, threads),
            build_delta_blocks(cut.outputs, steps, threads),
        ]
        return Built(nests, [cut.states, cut.products])

    def why_wasteful(self, steps: int) -> str | None:
        """Say so where chunks of time have less than a chunk of steps."""
        return why_wasteful(self.chunks, self.steps, steps)

    def cost(self, recurrence: DeltaRule, machine: Machine, steps: int | None = None) -> GpuCost:
        """Predict the time."""
        length = known_extent(recurrence.time.extent) if steps is None else steps
        states, threads = known_rows(recurrence), self.threads_per_block
        if self.chunks:
            work = cut_work(recurrence, states, length, self.steps, threads, self.chunks)
        else:
            work = blocks_work(recurrence, states, length, self.steps, threads)
        block = Block(threads, threads, self.shared_bytes(recurrence), _WAITING)
        return gpu_cost(work, block, machine.gpu)

    @classmethod
    def space(cls, recurrence: DeltaRule, machine: Machine) -> Iterator[Branch]:
        """Yield steps of a chunk and threads of a block."""
        steps, threads = tuple(sorted(_STEPS)), tuple(sorted(_THREADS))
        choices = (("steps", steps), ("threads_per_block", threads))
        yield Branch(cls(), choices)
        if counts := chunk_counts(recurrence):
            yield Branch(cls(chunks=counts[0]), (*choices, ("chunks", counts)))

    @classmethod
    def shortlist(cls, recurrence: DeltaRule, machine: Machine) -> Iterator[ScanPlan]:
        """Yield the longest chunk that fits; of none that does the shortest, which says why."""
        plans = [cls(steps=steps) for steps in _STEPS]
        base = next((plan for plan in plans if plan.fits(recurrence, machine)), plans[-1])
        yield base
        if tir.as_int(recurrence.time.extent) is None:  # which may be a single step
            return
        cut = (base.with_(chunks=count) for count in chunk_counts(recurrence))
        yield from (plan for plan in cut if plan.fits(recurrence, machine))

    def picture(self, recurrence: DeltaRule) -> Picture:
        """Return blocks that take chunks."""
        blocks = ceil(known_extent(recurrence.columns.extent) / COLUMNS)
        each = "a block" if blocks == 1 else f"{blocks} blocks"
        grid = f"{each} of {self.threads_per_block} threads for each state, {COLUMNS} "
        note = f"(chunks of {self.steps} steps as products of matrices in shared memory)"
        lines = (("grid", f"{grid}columns each"),)
        walk = Serial("lane", "block", note)
        if not self.chunks:
            return Picture(lines, (walk,))
        return Picture((describe_chunks(self.chunks), *lines), (Chunks(self.chunks), walk))
