"""``ScanPlan``: a whole schedule as a small frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

from tvm.target import Target

from tvm_scan import tir
from tvm_scan.errors import PlanError
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.lane_tiles import takes_lane_tiles
from tvm_scan.schedules.limits import Limits, device_of, limits_of
from tvm_scan.schedules.line_stores import takes_line_stores
from tvm_scan.schedules.vector_values import takes_time_vectors

__all__ = ["ALGORITHMS", "ScanPlan"]

ALGORITHMS = ("sequential", "lanes", "serial_tiles", "three_phase")
_BANKS = 32
#: TVM aligns every shared array to this many bytes.
_ALIGNMENT = 64


@dataclass(frozen=True)
class ScanPlan:
    """Every decision of a schedule; printable, hashable, one string form.

    Attributes
    ----------
    device : {"cpu", "cuda"}
        What the plan is for.
    algorithm : str
        ``sequential``: the loop as it was written (on a GPU: one thread per lane); on a CPU a
        carry kept in halves is rounded at every step, as written.
        ``lanes``: every lane walks time by itself; lanes over cores and vector lanes, or over
        threads. ``serial_tiles`` (CUDA): one block per lane walks tiles of
        ``threads_per_block * items_per_thread`` steps with a running carry. ``three_phase``:
        chunks of time are reduced to elements, the elements are scanned, the chunks replayed.
    threads_per_block : int
        CUDA threads in a block; a power of two for the tree.
    items_per_thread : int
        Consecutive steps that one thread scans serially in registers.
    block_tree : {"blelloch"}
        How the threads of a block exchange: upsweep and downsweep in padded shared memory.
    lane_block : int
        CPU: lanes that advance together, in a vector or interleaved.
    vectorize : bool
        CPU: whether the lanes of a block are vector lanes (else they are interleaved).
    chunks : int
        CPU ``three_phase``: chunks per lane.
    time_vector : int
        CPU: steps of time that are the lanes of a vector, scanned by shuffles; 0 for none.
    cache_steps : int
        CPU ``three_phase`` with ``time_vector``: steps of a lane that go through the phases before
        the next ones, so that the replay reads from the cache; 0 for all at once.
    transpose : bool
        CPU: vector lanes read and write rows along time in tiles, transposed in registers.
    nontemporal : bool
        CPU: whole cache lines of the output are stored past the caches.
    ldexp : bool
        CPU: the polynomials scale by powers of two in one instruction, which AVX-512 has.
    library_math : bool
        CPU: keep the C library's ``exp`` and ``log`` in vector loops, lane by lane, instead of
        polynomials of at most 4 ulp.
    """

    device: str = "cpu"
    algorithm: str = "sequential"
    threads_per_block: int = 0
    items_per_thread: int = 0
    block_tree: str = "blelloch"
    lane_block: int = 1
    vectorize: bool = False
    chunks: int = 0
    time_vector: int = 0
    cache_steps: int = 0
    transpose: bool = False
    nontemporal: bool = False
    ldexp: bool = False
    library_math: bool = False

    def __str__(self) -> str:
        shown = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.name not in ("device", "algorithm") and getattr(self, f.name) != f.default
        ]
        return f"{self.device}/{self.algorithm}({', '.join(shown)})"

    @classmethod
    def parse(cls, text: str) -> ScanPlan:
        """Read the string form.

        Raises
        ------
        PlanError
            If the text is not the string form of a plan.
        """
        match = re.fullmatch(r"(\w+)/(\w+)\((.*)\)", text.strip())
        if match is None:
            raise PlanError(
                "ScanPlan.parse: expected device/algorithm(field=value, ...), "
                f"got {text!r}; print a plan to see the form"
            )
        values: dict[str, Any] = {"device": match[1], "algorithm": match[2]}
        types = {f.name: type(f.default) for f in fields(cls)}
        for item in filter(None, (part.strip() for part in match[3].split(","))):
            name, _, value = item.partition("=")
            if name not in types:
                raise PlanError(
                    f"ScanPlan.parse: expected one of {sorted(types)}, got the field {name!r}"
                )
            kind = types[name]
            try:
                values[name] = value == "True" if kind is bool else kind(value)
            except ValueError:
                raise PlanError(
                    f"ScanPlan.parse: expected {kind.__name__} for {name}, got {value!r}"
                ) from None
        return cls(**values)

    def with_(self, **changes: Any) -> ScanPlan:
        """Copy with some decisions changed."""
        return replace(self, **changes)

    @property
    def tile(self) -> int:
        """Steps in one tile of a block."""
        return self.threads_per_block * self.items_per_thread

    def smem_bytes(self, recurrence: Recurrence) -> int:
        """Shared memory of one block in bytes: every part of every element, padded."""
        if self.device != "cuda" or self.algorithm not in ("serial_tiles", "three_phase"):
            return 0
        slots = self.threads_per_block + (self.threads_per_block - 1) // _BANKS
        used = 0
        for cells, dtype in _parts(recurrence):
            used = -(-used // _ALIGNMENT) * _ALIGNMENT + slots * cells * tir.byte_size(dtype)
        return used

    def check(self, target: Target, recurrence: Recurrence) -> None:
        """Check that the plan fits the target and the recurrence.

        Parameters
        ----------
        target : tvm.target.Target
            Where the kernel will run.
        recurrence : Recurrence
            What will run.

        Raises
        ------
        PlanError
            With the number that was expected and the one that was found.
        """
        device = device_of(target)
        self._require(
            self.algorithm in ALGORITHMS,
            "one of " + ", ".join(ALGORITHMS),
            f"algorithm={self.algorithm}",
            "choose another algorithm",
        )
        self._require(
            self.device == device,
            f"a plan for {device}",
            f"device={self.device}",
            "ask default_plan for one of this target",
        )
        self._check_indices(recurrence)
        if device == "cuda":
            self._check_cuda(limits_of(target), recurrence)
        else:
            self._check_cpu()
            self._check_time_vector(recurrence)
            self._check_transpose(recurrence)
            self._check_nontemporal(target, recurrence)
            self._require(
                not self.ldexp or limits_of(target).ldexp,
                "a target with AVX-512 for ldexp",
                str(target.attrs.get("mcpu", "a generic CPU")),
                "leave ldexp at False",
            )

    def _check_indices(self, recurrence: Recurrence) -> None:
        axes = (*recurrence.lanes, recurrence.time)
        if all(tir.dtype_of(axis.var) == "int64" for axis in axes):
            return
        for buffer in (*recurrence.inputs, *recurrence.outputs):
            extents = [tir.as_int(extent) for extent in tir.shape_of(buffer)]
            size = 0 if None in extents else prod(extents)
            self._require(
                size < 1 << 31,
                "int64 indices into a buffer of 2^31 elements or more",
                f"int32 indices into {buffer.name} of {size} elements",
                "write the extents of its loops as T.int64(n)",
            )

    def _check_cuda(self, limits: Limits, recurrence: Recurrence) -> None:
        if self.algorithm in ("sequential", "lanes"):
            threads = self.threads_per_block
            self._require(
                1 <= threads <= limits.threads,
                f"1 to {limits.threads} threads",
                f"threads_per_block={threads}",
                "use fewer threads per block",
            )
            return
        threads = self.threads_per_block
        self._require(
            2 <= threads <= limits.threads,
            f"2 to {limits.threads} threads per block",
            f"threads_per_block={threads}",
            "use fewer threads per block",
        )
        self._require(
            threads & (threads - 1) == 0,
            "a power of two for the Blelloch tree",
            f"threads_per_block={threads}",
            f"use {1 << (threads.bit_length() - 1)}",
        )
        self._require(
            1 <= self.items_per_thread <= 64,
            "1 to 64 items per thread",
            f"items_per_thread={self.items_per_thread}",
            "use 4 to 16",
        )
        self._require(
            self.block_tree == "blelloch",
            "block_tree=blelloch",
            f"block_tree={self.block_tree}",
            "leave block_tree at its default",
        )
        used = self.smem_bytes(recurrence)
        self._require(
            used <= limits.shared_bytes,
            f"at most {limits.shared_bytes} bytes of shared memory",
            f"{used} bytes ({element_bytes(recurrence)} per thread, padded, for {threads} threads)",
            "use fewer threads per block",
        )

    def _check_cpu(self) -> None:
        self._require(
            self.algorithm != "serial_tiles",
            "sequential, lanes or three_phase on a CPU",
            f"algorithm={self.algorithm}",
            "serial_tiles needs CUDA",
        )
        self._require(
            1 <= self.lane_block <= (4096 if self.vectorize else 64),
            f"1 to {4096 if self.vectorize else 64} lanes per block",
            f"lane_block={self.lane_block}",
            "use 4 interleaved lanes, or 32 vector lanes",
        )
        self._require(
            self.lane_block <= 32 or self.lane_block % 32 == 0,
            "a multiple of 32 lanes in a wide block",
            f"lane_block={self.lane_block}",
            f"use {max(32, self.lane_block // 32 * 32)}",
        )
        if self.algorithm == "three_phase":
            self._require(
                2 <= self.chunks <= 4096,
                "2 to 4096 chunks",
                f"chunks={self.chunks}",
                "use a few chunks per core",
            )
            self._require(
                self.chunks % self.lane_block == 0,
                "chunks divisible by lane_block",
                f"chunks={self.chunks}, lane_block={self.lane_block}",
                "round chunks up to a multiple of lane_block",
            )

    def _check_transpose(self, recurrence: Recurrence) -> None:
        if not self.transpose:
            return
        self._require(
            self.algorithm == "lanes" and self.vectorize and self.lane_block % 16 == 0,
            "lanes in vectors, a multiple of 16 in a block",
            f"algorithm={self.algorithm}, vectorize={self.vectorize}, lane_block={self.lane_block}",
            "use lanes(lane_block=32, vectorize=True, transpose=True)",
        )
        self._require(
            takes_lane_tiles(recurrence),
            "inputs or outputs along time, a row apart for neighbouring lanes",
            "none of four or eight bytes",
            "leave transpose at False",
        )

    def _check_nontemporal(self, target: Target, recurrence: Recurrence) -> None:
        if not self.nontemporal:
            return
        self._require(
            limits_of(target).line_stores,
            "a target with AVX for stores past the caches",
            str(target.attrs.get("mcpu", "a generic CPU")),
            "leave nontemporal at False",
        )
        self._require(
            self.algorithm in ("lanes", "three_phase") and bool(self.vectorize or self.time_vector),
            "vectors of lanes or of time",
            f"vectorize={self.vectorize}, time_vector={self.time_vector}",
            "leave nontemporal at False",
        )
        axes = [recurrence.time.var, *(lane.var for lane in recurrence.lanes[-1:])]
        along = axes[0] if self.time_vector or self.transpose else axes[-1]
        self._require(
            takes_line_stores(recurrence, along) or self.transpose,
            "outputs whose vectors are neighbours in memory",
            "none",
            "leave nontemporal at False",
        )

    def _check_time_vector(self, recurrence: Recurrence) -> None:
        if self.time_vector == 0:
            self._require(
                self.cache_steps == 0,
                "vectors of time for cache_steps",
                f"cache_steps={self.cache_steps}, time_vector=0",
                "leave cache_steps at 0",
            )
            return
        self._require(
            self.time_vector in (4, 8, 16, 32) and self.algorithm in ("lanes", "three_phase"),
            "4, 8, 16 or 32 steps in a vector of lanes or three_phase",
            f"time_vector={self.time_vector}",
            "leave it at 0, or use 16",
        )
        self._require(
            self.lane_block == 1 and not self.vectorize,
            "one lane at a time where a vector holds steps",
            f"lane_block={self.lane_block}, vectorize={self.vectorize}",
            "leave lane_block at 1",
        )
        self._require(
            self.cache_steps == 0 or (self.algorithm == "three_phase" and self.cache_steps >= 1024),
            "tiles of 1024 or more steps, in three_phase",
            f"algorithm={self.algorithm}, cache_steps={self.cache_steps}",
            "leave cache_steps at 0",
        )
        self._require(
            takes_time_vectors(recurrence),
            "one stage of carries of one cell, whose operators exist on vectors",
            ", ".join(algebra.name for algebra in recurrence.algebras),
            "leave time_vector at 0",
        )

    def _require(self, holds: bool, expected: str, found: str, fix: str) -> None:
        if not holds:
            raise PlanError(f"ScanPlan.check: expected {expected}, got {found}; {fix} ({self})")


def element_bytes(recurrence: Recurrence) -> int:
    """Bytes of one element of the whole state of a lane."""
    return sum(cells * tir.byte_size(dtype) for cells, dtype in _parts(recurrence))


def _parts(recurrence: Recurrence) -> list[tuple[int, str]]:
    """Cells and dtype of every part of every group's element."""
    return [
        (prod(int(axis.extent) for axis in recurrence.state_axes(group)), dtype)
        for group in recurrence.groups
        for dtype in group.algebra.dtypes
    ]
