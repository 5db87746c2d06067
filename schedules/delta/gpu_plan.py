"""The schedule of a delta rule on a GPU: a block takes chunks of steps for some columns of a state.

``gpu`` builds it. Everything of a chunk is in shared memory, by which its steps are bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.schedules.branch import Branch
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import known_extent, known_rows
from tvm_scan.schedules.delta.gpu import DeltaBlock
from tvm_scan.schedules.delta.gpu_block import COLUMNS
from tvm_scan.schedules.delta.gpu_carries import build_carries
from tvm_scan.schedules.delta.gpu_cost import blocks_work, cut_work
from tvm_scan.schedules.delta.gpu_tensor import TensorBlock
from tvm_scan.schedules.delta.tensor_tiles import (
    MOST_IN_LINE,
    TENSOR_STEPS,
    products_in_line,
)
from tvm_scan.schedules.delta.time_cut import (
    TimeCut,
    arrays_of,
    build_passes,
    check_chunks,
    chunk_counts,
    picture_of,
    why_wasteful,
)
from tvm_scan.schedules.machine.gpu_cost import Block, GpuCost, gpu_cost
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Picture, Serial
from tvm_scan.schedules.plan import ScanPlan

#: Steps of a chunk, the most first; threads of a block, those of a default first.
_STEPS, _THREADS = (16, 8, 4), (128, 64, 256)
#: Those of a default on tensor cores.
_TENSOR_THREADS = (64, 128)
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
    products : str
        How the large products of a chunk are made: ``fma``, by multiply-adds, or ``tf32x3``, each
        by three products of tf32 on tensor cores, with float32's accuracy (``gpu_tensor``).
    """

    device: ClassVar[str] = "cuda"
    algorithm: ClassVar[str] = "delta_blocks"
    takes: ClassVar[tuple[type[TimeLoop], ...]] = (DeltaRule,)
    words: ClassVar[Mapping[str, tuple[str, ...]]] = {"products": ("fma", "tf32x3")}

    steps: int = 16
    threads_per_block: int = 128
    chunks: int = 0
    products: str = "fma"

    @property
    def on_tensor_cores(self) -> bool:
        """Return whether products are made on tensor cores."""
        return self.products != "fma"

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
        self._check_products(recurrence, machine)
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

    def _check_products(self, recurrence: DeltaRule, machine: Machine) -> None:
        words = self.words["products"]
        self.require(
            self.products in words,
            f"products by {' or '.join(words)}",
            f"products={self.products}",
            "use fma",
        )
        if not self.on_tensor_cores:
            return
        self.require(
            machine.device.tensor_cores,
            f"tensor cores of tf32 for products={self.products}: CUDA from sm_80 on",
            f"{machine.device.name} of {machine.processor}",
            "use products=fma",
        )
        self.require(
            recurrence.dtype == "float32",
            f"a state of float32 for products={self.products}",
            recurrence.dtype,
            "use products=fma",
        )
        self.require(
            self.steps in TENSOR_STEPS,
            f"chunks of {' or '.join(map(str, TENSOR_STEPS))} steps for products={self.products}",
            f"steps={self.steps}",
            "use steps=8",
        )
        products = products_in_line(recurrence, self.steps)
        self.require(
            products <= MOST_IN_LINE,
            f"at most {MOST_IN_LINE} products of the steps of a chunk with one another, which "
            f"products={self.products} writes out",
            f"{products}",
            "use products=fma, or fewer steps",
        )

    def _passes(self, recurrence: DeltaRule) -> tuple[DeltaRule, ...]:
        """Rules that blocks run: the whole one, or those of segments of its time."""
        if not self.chunks:
            return (recurrence,)
        return TimeCut.of(recurrence, self.chunks, self.steps).passes

    def _arrays(self, recurrence: DeltaRule) -> int:
        """Most arrays of a kernel."""
        # The one between the segments has the states, their maps, and what is stored after time.
        between = 4 + len(recurrence.finish) if self.chunks else 0
        return max(between, *(len(arrays_of(rule)) for rule in self._passes(recurrence)))

    def _block(self, rule: DeltaRule) -> DeltaBlock:
        block = TensorBlock if self.on_tensor_cores else DeltaBlock
        return block(rule, self.steps, self.threads_per_block)

    def shared_bytes(self, recurrence: DeltaRule) -> int:
        """Bytes of everything of a chunk."""
        return max(self._block(rule).shared_bytes for rule in self._passes(recurrence))

    @property
    def has_barriers(self) -> bool:
        """Return True: the phases of a chunk wait for each other."""
        return True

    def build(self, recurrence: DeltaRule) -> Built:
        """Return the grid."""
        return build_passes(
            recurrence,
            self.chunks,
            self.steps,
            lambda rule: [self._block(rule).nest()],
            lambda cut: [build_carries(recurrence, cut, self.threads_per_block)],
        )

    def why_wasteful(self, steps: int) -> str | None:
        """Say so where chunks of time have less than a chunk of steps."""
        return why_wasteful(self.chunks, self.steps, steps)

    def cost(self, recurrence: DeltaRule, machine: Machine, steps: int | None = None) -> GpuCost:
        """Predict the time."""
        length = known_extent(recurrence.time.extent) if steps is None else steps
        states, threads = known_rows(recurrence), self.threads_per_block
        count = cut_work if self.chunks else blocks_work
        work = count(recurrence, states, length, self)
        block = Block(threads, threads, self.shared_bytes(recurrence), _WAITING)
        return gpu_cost(work, block, machine.gpu)

    @classmethod
    def space(cls, recurrence: DeltaRule, machine: Machine) -> Iterator[Branch]:
        """Yield steps of a chunk and threads of a block."""
        steps, threads = tuple(sorted(_STEPS)), tuple(sorted(_THREADS))
        ways = [(cls(), steps)]
        if _takes_tensor_cores(recurrence, machine):
            least = TENSOR_STEPS[-1]
            ways.append((cls(steps=least, products="tf32x3"), TENSOR_STEPS[::-1]))
        for base, lengths in ways:
            choices = (("steps", lengths), ("threads_per_block", threads))
            yield Branch(base, choices)
            if counts := chunk_counts(recurrence):
                yield Branch(base.with_(chunks=counts[0]), (*choices, ("chunks", counts)))

    @classmethod
    def shortlist(cls, recurrence: DeltaRule, machine: Machine) -> Iterator[ScanPlan]:
        """Yield the longest chunk that fits; of none that does the shortest, which says why.

        On tensor cores those of two and of four warps.
        """
        plans = [cls(steps=steps) for steps in _STEPS]
        bases = [next((plan for plan in plans if plan.fits(recurrence, machine)), plans[-1])]
        if _takes_tensor_cores(recurrence, machine):
            for threads in _TENSOR_THREADS:
                plan = cls(threads_per_block=threads, products="tf32x3")
                plans = [plan.with_(steps=steps) for steps in TENSOR_STEPS]
                bases += [plan for plan in plans if plan.fits(recurrence, machine)][:1]
        yield from bases
        if tir.as_int(recurrence.time.extent) is None:  # which may be a single step
            return
        cut = (base.with_(chunks=n) for base in bases for n in chunk_counts(recurrence))
        yield from (plan for plan in cut if plan.fits(recurrence, machine))

    def picture(self, recurrence: DeltaRule) -> Picture:
        """Return blocks that take chunks."""
        blocks = ceil(known_extent(recurrence.columns.extent) / COLUMNS)
        each = "a block" if blocks == 1 else f"{blocks} blocks"
        grid = f"{each} of {self.threads_per_block} threads for each state, {COLUMNS} "
        where = {"fma": "in shared memory", "tf32x3": "on tensor cores, in three of tf32 each"}
        note = f"(chunks of {self.steps} steps as products of matrices {where[self.products]})"
        walk = Serial("lane", "block", note)
        return picture_of(self.chunks, ("grid", f"{grid}columns each"), walk)


def _takes_tensor_cores(rule: DeltaRule, machine: Machine) -> bool:
    return machine.device.tensor_cores and rule.dtype == "float32"
