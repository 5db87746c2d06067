"""``ScanPlan``: a whole schedule as a small frozen value."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from math import prod
from typing import Any

from tvm.target import Target

from tvm_scan import tir
from tvm_scan.arguments import as_recurrence, as_target
from tvm_scan.errors import PlanError
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.cpu.checks import check_cpu
from tvm_scan.schedules.gpu.checks import check_cuda, shared_bytes
from tvm_scan.schedules.machine.limits import device_of, limits_of

__all__ = ["ALGORITHMS", "ScanPlan"]

DEVICES = ("cpu", "cuda")
ALGORITHMS = ("sequential", "lanes", "serial_tiles", "three_phase", "single_pass")

_NAMES = (DEVICES, ALGORITHMS)
_FORM = re.compile(r"(\w+)/(\w+)\((.*)\)", re.ASCII)
#: Type of a field -> its values in the string form, and what they are called.
_VALUES = {
    bool: (re.compile("True|False"), "True or False"),
    int: (re.compile("-?[0-9]{1,18}"), "int"),
    str: (re.compile(r"\w+", re.ASCII), "a word"),
}


def _value(kind: type, name: str, text: str) -> Any:
    form, called = _VALUES[kind]
    if form.fullmatch(text) is None:
        raise _unreadable(f"{called} for {name}", repr(text))
    return text == "True" if kind is bool else kind(text)


def _unreadable(expected: str, found: str) -> PlanError:
    return PlanError(
        f"ScanPlan.parse: expected {expected}, got {found}; print a plan to see the form"
    )


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
        ``single_pass`` (CUDA, experimental): one block per tile, which waits for the elements of
        the tiles before it.
    threads_per_block : int
        CUDA threads in a block; a power of two for the tree.
    items_per_thread : int
        Consecutive steps that one thread scans serially in registers.
    block_tree : {"blelloch", "kogge_stone", "warp"}
        How the threads of a block exchange: upsweep and downsweep in padded shared memory,
        doubling distances in shared memory, or shuffles within warps and one element per warp.
    vector_loads : bool
        CUDA: loads and stores of 128 bits, where length and layout align them, in trees and
        where threads share a lane.
    threads_per_lane : int
        CUDA ``lanes``: threads that share the states of a lane and walk time together,
        ``threads_per_lane * items_per_thread`` steps at a time; 1 for a thread with all states.
    block_load : {"direct", "transposed"}
        CUDA: whether each thread moves its own items, or the block moves whole lines, which its
        threads exchange in padded shared memory.
    stages : int
        CUDA ``serial_tiles`` with ``block_load=transposed``: buffers for the inputs of a tile, 1
        to 3; the asynchronous copies of all but one are under way while a tile is computed.
    lanes_per_block : int
        CUDA trees: lanes of a block, each with ``threads_per_block`` threads; with
        ``block_load=transposed`` they read once what they share.
    exp_share : int
        CUDA, several threads per lane: of 16 exponentials in base 2 over the states, how many a
        polynomial computes while the others take the special function unit.
    lane_block : int
        CPU: lanes that advance together, in a vector or interleaved.
    vectorize : bool
        CPU: whether the lanes of a block are vector lanes (else they are interleaved).
    chunks : int
        CPU ``three_phase``, CUDA ``lanes``: chunks of time per lane. On CUDA each is walked by
        threads of its own: reduced first, and replayed from its carry; 0 for none.
    time_vector : int
        CPU: steps of time that are the lanes of a vector, scanned by shuffles; 0 for none.
    time_runs : bool
        CPU ``time_vector``: every lane of a vector scans a run of 4 neighbouring steps before the
        lanes meet; a vector of steps is 4 vectors of the machine.
    cache_steps : int
        CPU ``three_phase`` with ``time_vector``: steps of a lane that go through the phases before
        the next ones, so that the replay reads from the cache; 0 for all at once.
    transpose : bool
        CPU: vector lanes read and write rows along time in tiles, transposed in registers.
    prefetch : int
        CPU ``transpose``: tiles ahead of which lines are asked for; 0 for what the CPU guesses.
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
    time_runs: bool = False
    cache_steps: int = 0
    transpose: bool = False
    prefetch: int = 0
    nontemporal: bool = False
    ldexp: bool = False
    library_math: bool = False
    vector_loads: bool = False
    threads_per_lane: int = 1
    block_load: str = "direct"
    stages: int = 1
    lanes_per_block: int = 1
    exp_share: int = 0

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
        match = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise _unreadable("device/algorithm(field=value, ...)", repr(text))
        for what, word, known in zip(cls.__match_args__, match.groups(), _NAMES, strict=False):
            if word not in known:
                raise _unreadable(f"one of {', '.join(known)}", f"{what}={word}")
        kinds = {f.name: type(f.default) for f in fields(cls)[2:]}
        values: dict[str, Any] = {}
        for item in (part.strip() for part in match[3].split(",")) if match[3].strip() else ():
            name, equals, value = item.partition("=")
            if not equals:
                raise _unreadable("field=value", repr(item))
            if name not in kinds:
                raise _unreadable(f"one of {sorted(kinds)}", f"the field {name!r}")
            if name in values:
                raise _unreadable("each field once", f"{name} twice")
            values[name] = _value(kinds[name], name, value)
        return cls(match[1], match[2], **values)

    def with_(self, **changes: Any) -> ScanPlan:
        """Copy with some decisions changed."""
        return replace(self, **changes)

    @property
    def tile(self) -> int:
        """Steps in one tile of a block."""
        return self.threads_per_block * self.items_per_thread

    def smem_bytes(self, recurrence: Recurrence) -> int:
        """Shared memory of one block in bytes: every part of every element, padded."""
        return shared_bytes(self, as_recurrence(recurrence, "ScanPlan.smem_bytes"))

    def check(self, target: Target, recurrence: Recurrence) -> None:
        """Check that the plan fits the target and the recurrence.

        Parameters
        ----------
        target : tvm.target.Target or str
            Where the kernel will run.
        recurrence : Recurrence
            What will run.

        Raises
        ------
        PlanError
            With the number that was expected and the one that was found.
        """
        recurrence = as_recurrence(recurrence, "ScanPlan.check")
        target = as_target(target, "ScanPlan.check") or Target.from_device("cpu")
        device = device_of(target)
        self.require(
            self.algorithm in ALGORITHMS,
            "one of " + ", ".join(ALGORITHMS),
            f"algorithm={self.algorithm}",
            "choose another algorithm",
        )
        self.require(
            self.device == device,
            f"a plan for {device}",
            f"device={self.device}",
            "ask default_plan for one of this target",
        )
        self._check_indices(recurrence)
        if device == "cuda":
            check_cuda(self, limits_of(target), recurrence)
        else:
            check_cpu(self, target, recurrence)

    def _check_indices(self, recurrence: Recurrence) -> None:
        axes = (*recurrence.lanes, recurrence.time)
        if all(tir.dtype_of(axis.var) == "int64" for axis in axes):
            return
        for buffer in (*recurrence.inputs, *recurrence.outputs):
            extents = [tir.as_int(extent) for extent in tir.shape_of(buffer)]
            size = prod(extent or 0 for extent in extents)  # 0 where one is not known
            self.require(
                size < 1 << 31,
                "int64 indices into a buffer of 2^31 elements or more",
                f"int32 indices into {buffer.name} of {size} elements",
                "write the extents of its loops as T.int64(n)",
            )

    def require(self, holds: bool, expected: str, found: str, fix: str) -> None:
        """Raise a ``PlanError`` with what was expected, found, and the fix, unless it holds."""
        if not holds:
            raise PlanError(f"ScanPlan.check: expected {expected}, got {found}; {fix} ({self})")
