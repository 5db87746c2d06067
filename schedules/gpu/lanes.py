"""Schedules whose threads walk time: one thread for each lane, several, or chunks of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import tirx

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.branch import Branch, Choices, powers
from tvm_scan.schedules.common.ir import Kernel, loop, threads_over, when
from tvm_scan.schedules.common.lanes import decode_lanes, guard_of, lane_count
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.sizes import chunks_too_short, known_extent, known_rows, sizes_of
from tvm_scan.schedules.common.state_reduction import StateReduction, reduction_of
from tvm_scan.schedules.common.state_split import NoSplit, StateSplit, split_of
from tvm_scan.schedules.common.strides import contiguous_axis
from tvm_scan.schedules.gpu.shared.walk_layout import stages_tables, walk_layout
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.gpu.thread.plans import WalkPlan, aligned, moves_vectors, shuffles
from tvm_scan.schedules.gpu.walk.chunk_checks import check_chunks, takes_chunks
from tvm_scan.schedules.gpu.walk.chunks import build_chunks
from tvm_scan.schedules.gpu.walk.common_factors import with_common_factors
from tvm_scan.schedules.gpu.walk.exchange import block_bytes
from tvm_scan.schedules.gpu.walk.exponentials import OF, exponentials_in_base_two
from tvm_scan.schedules.gpu.walk.model import walk_work
from tvm_scan.schedules.gpu.walk.shared_lanes import build_shared_lanes
from tvm_scan.schedules.gpu.walk.time_cut import TimeCut
from tvm_scan.schedules.machine.gpu_chip import GpuChip, Work
from tvm_scan.schedules.machine.machine import Machine
from tvm_scan.schedules.picture import Chunks, Picture, Serial

#: Lanes of a multiprocessor that leave no room for more, and steps of a chunk at least.
_FULL, _LEAST_CHUNK = 1024, 64
#: States of a thread that a default is chosen among, where threads can share them.
_MOST_STATES = 16
#: Kinds of shuffles between threads that share a lane.
_SHUFFLES = ("", "_xor")
#: Shares of exponentials by polynomials that a default is chosen among; of an odd share one step of
#: two would have one more, so that they were no pair.
_SHARES = (2, 4)
#: Chunks that a default is chosen among, the fewest first.
_CHUNKS = (4, 8, 16, 32, 64, 128)
#: Threads of a block of a walk in chunks.
_SOME = (64, 128)


def _serial_threads(recurrence: Recurrence, threads_per_block: int) -> Built:
    """A serial scan by one thread per lane; no exchange.

    Neighbouring threads take neighbouring lanes, so that memory is read in full lines where the
    lane axis is contiguous. Every kernel uses ``blockIdx.x`` alone, which holds 2^31 - 1 blocks:
    the number of rows is not limited to 65,535.
    """
    rows, time = lane_count(recurrence), recurrence.time
    row = tirx.Var("v_row", tir.dtype_of(rows))
    lanes = decode_lanes(recurrence, row)
    replica = Replica(recurrence, lanes, unroll=True)
    body = tir.seq(
        [
            replica.begin(),
            replica.boundary(),
            loop("t", time.extent, replica.step),
            replica.finish(),
        ]
    )

    def kernel(inside: Any) -> Kernel:
        code = when(inside, when(guard_of(recurrence, lanes), body))
        return Kernel("scan_lanes", recurrence.inputs, recurrence.outputs, code, replica.buffers)

    return Built([threads_over(kernel, row, rows, threads_per_block)], [])


class _Walk(WalkPlan):
    """The common part of the two schedules."""

    def _check_threads(self, machine: Machine) -> None:
        self.require(
            1 <= self.threads_per_block <= machine.threads,
            f"1 to {machine.threads} threads",
            f"threads_per_block={self.threads_per_block}",
            "use fewer threads per block",
        )

    def picture(self, recurrence: Recurrence) -> Picture:
        """Return threads that walk, and the chunks that they walk."""
        cut = f"{self.chunks} of time: reduce all but the last, scan their elements, replay all"
        shared = self.threads_per_lane
        who = f"{shared} threads, some of the states each," if shared > 1 else "one thread"
        grid = ("grid", f"{who} per lane, {self.threads_per_block} threads per block")
        walk = Serial("thread", "thread", self._exchange())
        if not self.chunks:
            return Picture((grid,), (walk,))
        return Picture((("chunks", cut), grid), (Chunks(self.chunks), walk))

    def _exchange(self) -> str:
        tiles = tiles_of(self.stages) if self.block_load == "transposed" else ""
        if self.threads_per_lane == 1:
            return f"(serial, no exchange{tiles and '; '}{tiles})"
        steps = f"{self.items_per_thread} steps prepared by each thread, then shuffled"
        return f"(serial; {steps}{tiles and ', '}{tiles})"


@dataclass(frozen=True)
class Sequential(_Walk):
    """The loop as it was written, one thread for each lane.

    Attributes
    ----------
    threads_per_block : int
        Threads of a block.
    """

    algorithm: ClassVar[str] = "sequential"
    keeps_loop: ClassVar[bool] = True
    threads_per_block: int = 0

    def check_fit(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check the number of threads."""
        self._check_threads(machine)
        self.check_room(recurrence, machine)

    def build(self, recurrence: Recurrence) -> Built:
        """Return one kernel, without exchange."""
        return _serial_threads(recurrence, self.threads_per_block)

    def tile_bytes(self, recurrence: Recurrence) -> list[int]:
        """Return nothing: no block has a tile."""
        return []

    def work(self, recurrence: Recurrence, rows: float, steps: float, chip: GpuChip) -> Work:
        """Count as for lanes of a thread each."""
        return walk_work(Lanes(self.threads_per_block), recurrence, rows, steps, chip)

    @classmethod
    def shortlist(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Sequential]:
        """Yield nothing: lanes of a thread each are the same kernel."""
        return iter(())

    @classmethod
    def space(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Branch]:
        """Yield the loop itself."""
        yield Branch(cls(threads_per_block=min(WARP, machine.threads)))


@dataclass(frozen=True)
class Lanes(_Walk):
    """Every lane is a serial scan, over threads.

    Attributes
    ----------
    threads_per_block : int
        Threads of a block.
    items_per_thread : int
        Steps that a thread prepares for the others of its lane.
    vector_loads : bool
        Loads and stores of 128 bits, where threads share a lane.
    threads_per_lane, chunks, exp_share, block_load, stages
        See ``WalkPlan`` and ``GpuPlan``.
    """

    algorithm: ClassVar[str] = "lanes"
    threads_per_block: int = 0
    items_per_thread: int = 0
    chunks: int = 0
    vector_loads: bool = False
    threads_per_lane: int = 1
    block_load: str = "direct"
    stages: int = 1
    exp_share: int = 0

    @property
    def step_passes(self) -> int:
        """Chunks are reduced and replayed."""
        return 2 if self.chunks else 1

    @property
    def has_scratch(self) -> bool:
        """Return whether there are chunks, whose elements and carries lie in memory."""
        return self.chunks > 0

    @property
    def has_barriers(self) -> bool:
        """Return whether a tile is waited for by a barrier: several buffers have their own."""
        return self.block_load == "transposed" and self.stages == 1

    @property
    def kind(self) -> tuple[Any, ...]:
        """Whole or in chunks, through shared memory or not."""
        return self.device, self.algorithm, self.block_load, self.chunks > 0

    # ---- check ---------------------------------------------------------------------------------

    def check_fit(self, recurrence: Recurrence, machine: Machine) -> None:
        """Check threads, states, chunks and shared memory."""
        self._check_share(recurrence)
        check_chunks(self, recurrence)
        self._check_threads(machine)
        if self.splits_steps:
            self._check_split(recurrence, machine)
        self.check_moves(machine)
        self._check_tiles(recurrence)
        self.check_room(recurrence, machine)

    def _check_split(self, recurrence: Recurrence, machine: Machine) -> None:
        shared, split = self.threads_per_lane, split_of(recurrence)
        fix = "use block_load=direct" if shared == 1 else "leave threads_per_lane at 1"
        if shared != 1:
            self.check_shuffles(machine, _SHUFFLES, "threads that share a lane", fix)
        self.require(
            isinstance(split, StateSplit),
            "a step whose states are independent but for sums over them",
            str(split) if isinstance(split, NoSplit) else "one",
            fix,
        )
        self.require(
            machine.device.fast_exp or exponentials_in_base_two(recurrence) == 0,
            "a device with an instruction for powers of two, for exponentials of shared lanes",
            f"{machine.device.name}, which has none",
            fix,
        )
        self.require(
            shared in (1, 2, 4, 8, 16, 32),
            "2, 4, 8, 16 or 32 threads per lane, in algorithm lanes",
            f"threads_per_lane={shared}",
            "leave it at 1",
        )
        self.require(
            self.threads_per_block % WARP == 0,
            f"whole warps of {WARP} threads for shared lanes",
            f"threads_per_block={self.threads_per_block}",
            f"use {max(WARP, self.threads_per_block // WARP * WARP)}",
        )
        self.require(
            1 <= self.items_per_thread <= 16,
            "1 to 16 items per thread of shared lanes",
            f"items_per_thread={self.items_per_thread}",
            "use 4",
        )
        states = split.states if isinstance(split, StateSplit) else 0
        self.require(
            states % shared == 0,
            "states divisible by threads_per_lane",
            f"{states} states, threads_per_lane={shared}",
            "use fewer threads per lane",
        )

    def _check_share(self, recurrence: Recurrence) -> None:
        if self.exp_share == 0:
            return
        self.require(
            0 < self.exp_share <= OF and self.splits_steps,
            f"an exp_share of 0 to {OF}, with several threads per lane",
            f"exp_share={self.exp_share}, threads_per_lane={self.threads_per_lane}",
            "leave it at 0",
        )
        self.require(
            exponentials_in_base_two(recurrence) > 0,
            "exponentials exp(x a) of float32 in the loop over the states, where a is an input "
            "that does not change with time",
            "none",
            "leave exp_share at 0",
        )

    def _check_tiles(self, recurrence: Recurrence) -> None:
        if self.block_load == "transposed":
            self.require(
                bool(walk_layout(self, recurrence).tile_bytes),
                "an array whose memory runs along time, or one that the lanes of a block share",
                "none",
                "use block_load=direct",
            )

    # ---- build and count -----------------------------------------------------------------------

    def build(self, recurrence: Recurrence) -> Built:
        """Return one kernel, or three for chunks of time."""
        if self.splits_steps:
            recurrence = with_common_factors(recurrence)
        if self.chunks:
            cut = TimeCut(recurrence, self)
            if cut.count > 1:
                return build_chunks(recurrence, self, cut)
        if self.splits_steps:
            return build_shared_lanes(recurrence, self)
        return _serial_threads(recurrence, self.threads_per_block)

    def why_wasteful(self, steps: int) -> str | None:
        """Say so of chunks of a few steps, which cost more than they share out."""
        return chunks_too_short(self.chunks, steps)

    def shared_bytes(self, recurrence: Recurrence) -> int:
        """Shared memory of one block in bytes: its tiles, and what threads of a lane exchange."""
        recurrence = with_common_factors(recurrence)
        split, reduction = split_of(recurrence), reduction_of(recurrence) if self.chunks else None
        splits = [split] if isinstance(split, StateSplit) else []
        splits += [reduction.split] if isinstance(reduction, StateReduction) else []
        sizes = [aligned(block_bytes(self, recurrence, part)) for part in splits]
        return max(sizes, default=0)

    def tile_bytes(self, recurrence: Recurrence) -> list[int]:
        """Return the bytes of every tile; in chunks, of the kernel that has more of them.

        The one that reduces stages fewer arrays, but may have room for one that the other has not.
        """
        sizes = [walk_layout(self, recurrence).bytes_of(self.stages)]
        reduction = reduction_of(recurrence) if self.chunks else None
        if isinstance(reduction, StateReduction):
            sizes.append(walk_layout(self, recurrence, reduction.split).bytes_of(self.stages))
        return max(sizes, key=sum)

    def work(self, recurrence: Recurrence, rows: float, steps: float, chip: GpuChip) -> Work:
        """Count what the walk does, whole or in chunks."""
        return walk_work(self, recurrence, rows, steps, chip)

    # ---- space and picture ---------------------------------------------------------------------

    @classmethod
    def space(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Branch]:
        """Yield a thread per lane, threads that share lanes, both in chunks where lanes are few."""
        threads = tuple(t for t in powers(32, 1024) if t <= machine.threads)
        if not threads:
            return
        if known_rows(recurrence) > 1:
            choices = (("threads_per_block", threads), *cls._chunks(1, machine, recurrence))
            yield Branch(cls(threads_per_block=threads[0]), choices)
        split = split_of(recurrence)
        states = 1 if isinstance(split, NoSplit) else split.states
        shared = tuple(s for s in powers(2, min(32, states)) if states % s == 0)
        if not shared or not shuffles(machine, _SHUFFLES):
            return
        base = cls(
            threads[0],
            items_per_thread=1,
            vector_loads=moves_vectors(machine),
            threads_per_lane=shared[0],
        )
        choices = (
            ("threads_per_block", tuple(t for t in threads if t <= 256)),
            ("items_per_thread", (1, 2, 4, 8)),
            ("threads_per_lane", shared),
        )
        if exponentials_in_base_two(recurrence):
            choices += (("exp_share", (0, 4, 8)),)
        yield Branch(base, choices)
        choices = tuple((k, (1, *v) if k == "threads_per_lane" else v) for k, v in choices)
        yield Branch(base.with_(block_load="transposed"), (*choices, buffer_choices(machine)))
        yield from cls._shared_in_chunks(base, shared, machine, recurrence)

    @classmethod
    def shortlist(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Lanes]:
        """Yield a thread per lane, threads that share lanes, and both in chunks of some lines."""
        plans = [cls(threads_per_block=min(128, machine.threads))]
        plans += [p for p in cls._shared(recurrence, machine) if p.fits(recurrence, machine)]
        yield from plans
        # A thread for each lane takes twice the chunks of two.
        for plan in sorted(plans, key=lambda p: p.splits_steps and p.threads_per_lane == 1):
            for chunked in plan._in_chunks(recurrence, machine):
                if chunked.fits(recurrence, machine):
                    yield chunked

    @classmethod
    def _shared(cls, recurrence: Recurrence, machine: Machine) -> Iterator[Lanes]:
        """Threads share the states of a lane: every exponential once, time in series."""
        split = split_of(recurrence)
        if isinstance(split, NoSplit) or not shuffles(machine, _SHUFFLES):
            return
        # A thread alone has most registers, and few others beside it, last.
        counts = [s for s in (2, 4, 8, 16, 32, 1) if split.states % s == 0]
        alone = [s for s in counts if s > 2] or counts[-1:]
        for shared in counts:
            # Few lanes spread over more multiprocessors in small blocks; of a thread or two to a
            # lane, the tiles of larger ones do not fit.
            plan = cls(
                threads_per_block=128 if 2 < shared <= 8 else min(64, WARP * shared),
                items_per_thread=4,
                vector_loads=moves_vectors(machine),
                threads_per_lane=shared,
            )
            # Two threads read half a sector of memory: by themselves only where the states allow
            # no more.
            if shared > 1 and shared in alone:
                yield plan
            if not machine.async_copies:
                continue
            staged = plan.with_(block_load="transposed", stages=2)
            # Many states of a thread take more registers than it has; and few threads, the more of
            # whose loads are their own, wait for each.
            few = split.states // shared <= _MOST_STATES and stages_tables(staged, recurrence)
            if shared in alone or few:
                yield staged
                # Pairs leave instructions over, which compute some of the exponentials.
                if machine.device.pairs and exponentials_in_base_two(recurrence):
                    yield from (staged.with_(exp_share=share) for share in _SHARES)

    def _in_chunks(self, recurrence: Recurrence, machine: Machine) -> Iterator[Lanes]:
        """Walks whose lanes leave the chip half empty, cut into chunks of some lines.

        Of sizes that are not known only lanes that are neighbours in memory, a thread each: a tree
        reads eight times what it needs there, and a whole walk of few lanes waits for memory at
        every step; chunks of many lanes read their inputs twice, which is the least evil.
        """
        known = None not in sizes_of(recurrence)
        if not known and (self.threads_per_lane > 1 or contiguous_axis(recurrence) != "lane"):
            return
        threads = known_rows(recurrence) * self.threads_per_lane
        if 0 < threads < machine.multiprocessors * _FULL:
            # Of short sequences, most of many chunks would be empty.
            for chunks in _CHUNKS if known else _CHUNKS[:2]:
                if chunks * _LEAST_CHUNK <= known_extent(recurrence.time.extent):
                    yield self.with_(chunks=chunks)

    @staticmethod
    def _chunks(shared: int, machine: Machine, recurrence: Recurrence) -> Choices:
        """Chunks of time, where lanes leave the chip half empty and chunks have some lines."""
        full = known_rows(recurrence) >= machine.multiprocessors * _FULL
        if full or not takes_chunks(shared > 1, recurrence):
            return ()
        length = known_extent(recurrence.time.extent)
        few = tuple(c for c in (8, 32, 128) if c * _LEAST_CHUNK <= length)
        return (("chunks", (0, *few)),) if few else ()

    @classmethod
    def _shared_in_chunks(
        cls, base: Lanes, shared: tuple[int, ...], machine: Machine, recurrence: Recurrence
    ) -> Iterator[Branch]:
        """Branches of walks in chunks whose other decisions are those of the default."""
        chunks = cls._chunks(shared[0], machine, recurrence)
        if not chunks or machine.threads < _SOME[-1]:
            return
        ((_, (_, *counts)),) = chunks
        base = base.with_(threads_per_block=_SOME[0], items_per_thread=4, chunks=counts[0])
        choices = (
            ("threads_per_block", _SOME),
            ("threads_per_lane", shared),
            ("chunks", tuple(counts)),
        )
        yield Branch(base, choices)
        if machine.async_copies:
            yield Branch(base.with_(block_load="transposed", stages=2), choices)


def tiles_of(buffers: int) -> str:
    """Describe where the inputs of a tile wait."""
    if buffers == 1:
        return "tiles in shared memory"
    return f"tiles in {buffers} buffers of shared memory, copied ahead"


def buffer_choices(machine: Machine) -> tuple[str, tuple[int, ...]]:
    """The decision about buffers, as far as the target copies ahead."""
    return "stages", (1, 2, 3) if machine.async_copies else (1,)
