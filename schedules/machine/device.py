"""Interfaces to processors and what they offer: a row for every kind of target.

A schedule asks the row, never the kind's name: what it needs and a device lacks is a ``PlanError``.
A new interface is a new row, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import tvm
from tvm.target import Target
from tvm.target.codegen import target_has_features

from tvm_scan.errors import PlanError
from tvm_scan.schedules.common.wrapping import Overflow


@dataclass(frozen=True)
class Device:
    """An interface to processors: what it offers to kernels, whatever the processor behind it.

    Attributes
    ----------
    name : str
        TVM's kind of target.
    plans : str
        How its plans begin: the ``device`` of the schedules that are for it. Those of every GPU
        begin like CUDA's, the first one.
    is_gpu : bool
        Whether a kernel is a grid of threads, rather than code that a pool of threads runs.
    has_features : bool
        Whether TVM says which instructions a target has.
    threads, shared_bytes, blocks, warp : int
        Threads and bytes of shared memory of a block, blocks of a grid, threads of a warp: what a
        target has that does not say.
    packed_blocks : int
        Blocks of one dimension of a grid, where TVM's code takes those beyond from another one; 0
        where a dimension holds all blocks.
    buffers : int
        Buffers that a kernel can be given.
    shuffles : frozenset of str
        The intrinsics ``tvm_warp_shuffle`` that TVM has code for, by what follows in their names.
    subgroups : frozenset of str
        Those that a target has which says ``supports_subgroups``: a warp is a subgroup then.
    shuffle_bits : int
        The widest value that a shuffle moves.
    parts_of_warps : bool
        Whether threads can shuffle in groups that are smaller than their warp.
    warp_barrier : bool
        Whether the threads of a warp can wait for one another alone; where they cannot, all those
        of the block do.
    votes : bool
        Whether the threads of a warp can ask whether a condition holds in all of them.
    pairs_from : int
        Compute capability from which an instruction multiplies and adds two float32 at once; 0 for
        none.
    pairs : bool
        Whether a target has it.
    tensor_from : int
        Compute capability from which a warp multiplies matrices of tf32 by one instruction; 0 for
        none.
    tensor_cores : bool
        Whether a target has it.
    async_copies : bool
        Whether copies to shared memory can go on while threads compute.
    ordered_memory : bool
        Whether a store can release, and a load acquire, what another block reads.
    fast_exp : bool
        Whether the bare instruction for powers of two can be had.
    c_functions : bool
        Whether a function that TVM has no rule for can be had by its name in C, as ``log1pf``.
    vector_bits : int
        The widest load and store of a thread, 0 where TVM's code has no vectors.
    lacks : frozenset of str
        Dtypes that its code cannot hold. Indices of 64 bits are then narrowed to 32 by TVM.
    overflow : Overflow
        What its language makes of integers that overflow.
    non_finite : bool
        Whether its language says what becomes of infinities and NaN: where it does not, drivers
        take every number to be finite.
    extremes : bool
        Whether TVM writes infinities, and the least int32, as its language reads them.
    in_browser : bool
        Whether its kernels run in a browser, so that a page of them can be written.
    backend : str
        Of TVM's pipelines for models, the one that is its own.
    driver : str
        Of ``schedules.launch``, the module that runs its kernels where TVM has no runtime of it.
    instead : str
        Another kind whose kernels its drivers take, too: a TVM without its code generator uses that
        one's.
    generator : str
        The kind whose code generator is used, where that is another one.
    """

    name: str
    plans: str = "cuda"
    is_gpu: bool = True
    has_features: bool = False
    threads: int = 256
    shared_bytes: int = 16 << 10
    blocks: int = (1 << 31) - 1
    packed_blocks: int = 0
    warp: int = 1
    buffers: int = 1 << 7
    shuffles: frozenset[str] = frozenset()
    subgroups: frozenset[str] = frozenset()
    shuffle_bits: int = 32
    parts_of_warps: bool = False
    warp_barrier: bool = False
    votes: bool = False
    pairs_from: int = 0
    pairs: bool = False
    tensor_from: int = 0
    tensor_cores: bool = False
    async_copies: bool = False
    ordered_memory: bool = False
    fast_exp: bool = False
    c_functions: bool = False
    vector_bits: int = 128
    lacks: frozenset[str] = frozenset()
    overflow: Overflow = Overflow.C
    non_finite: bool = True
    extremes: bool = True
    in_browser: bool = False
    backend: str = "gpu_generic"
    driver: str = ""
    instead: str = ""
    generator: str = ""

    @property
    def is_served(self) -> bool:
        """Return whether this build of TVM has a code generator for it."""
        return self.is_generated or bool(self.instead and DEVICES[self.instead].is_generated)

    @property
    def is_generated(self) -> bool:
        """Return whether this build of TVM has its own code generator."""
        return tvm.get_global_func(f"target.build.{self.name}", allow_missing=True) is not None

    @property
    def language(self) -> str:
        """Kind whose code generator writes its kernels."""
        return self.generator or self.name

    @property
    def runtime(self) -> str:
        """Device on which TVM runs its kernels, as ``tvm.device`` and torch name it."""
        return self.name if self.is_gpu else "cpu"

    @property
    def rules(self) -> str:
        """Name of TVM's set of schedule rules for it."""
        return "cuda" if self.is_gpu else "llvm"


def _cpu(name: str, overflow: Overflow, **options: Any) -> Device:
    return Device(
        name,
        plans="cpu",
        is_gpu=False,
        threads=1,
        c_functions=True,
        overflow=overflow,
        backend="cpu_generic",
        **options,
    )


_SHUFFLES = frozenset({"", "_up"})
#: What has less than 32 bits, but for the half that has a feature of its own.
_NARROW = {"bool", "int8", "uint8", "int16", "uint16", "bfloat16"}

#: Kind of target -> its row.
DEVICES: dict[str, Device] = {
    row.name: row
    for row in (
        _cpu("llvm", Overflow.LLVM, has_features=True),
        _cpu("c", Overflow.C, vector_bits=0, extremes=False),
        Device(
            "cuda",
            threads=1024,
            shared_bytes=48 << 10,
            warp=32,
            shuffles=_SHUFFLES | {"_xor"},
            shuffle_bits=64,
            parts_of_warps=True,
            warp_barrier=True,
            votes=True,
            pairs_from=100,
            tensor_from=80,
            async_copies=True,
            ordered_memory=True,
            fast_exp=True,
            c_functions=True,
            backend="cuda",
        ),
        # What follows has no runtime in TVM's wheels, and a code generator but for Vulkan.
        Device(
            "rocm",
            shared_bytes=64 << 10,
            warp=64,
            shuffles=_SHUFFLES,
            parts_of_warps=True,
            overflow=Overflow.LLVM,
            backend="rocm",
        ),
        Device("opencl", shuffles=frozenset({""}), driver="opencl"),
        Device(
            "metal",
            shared_bytes=32 << 10,
            warp=16,  # as TVM has it
            buffers=30,  # and one for all scalars
            shuffles=_SHUFFLES,
            lacks=frozenset({"float64"}),
        ),
        # The blocks are those that every implementation has.
        Device(
            "vulkan",
            blocks=(1 << 16) - 1,
            overflow=Overflow.WRAPS,
            instead="webgpu",
        ),
        # Vectors are loaded cell by cell. Shuffles need subgroups of 32 threads, which not every
        # adapter has: a target says so.
        Device(
            "webgpu",
            shared_bytes=32 << 10,
            packed_blocks=(1 << 16) - 1,
            subgroups=_SHUFFLES,
            buffers=8,
            vector_bits=32,
            lacks=frozenset(_NARROW | {"float64", "int64", "uint64"}),
            overflow=Overflow.WRAPS,
            non_finite=False,
            extremes=False,
            in_browser=True,
            driver="webgpu",
        ),
    )
}


def device_of(target: Target) -> Device:
    """Row of a target.

    Parameters
    ----------
    target : tvm.target.Target
        Of any kind.

    Raises
    ------
    PlanError
        If no schedule serves its kind, or TVM was built without its code generator.
    """
    kind = str(target.kind.name)
    row = DEVICES.get(kind)
    if row is not None and row.is_served:
        if not row.is_generated:
            row = _by_another(row)
        attrs = target.attrs or {}
        if row.subgroups and attrs.get("supports_subgroups"):
            return replace(row, shuffles=row.subgroups)
        capability = compute_capability(str(attrs.get("arch") or ""))
        has_pairs = 0 < row.pairs_from <= capability
        has_tensors = 0 < row.tensor_from <= capability
        if has_pairs or has_tensors:
            return replace(row, pairs=has_pairs, tensor_cores=has_tensors)
        return row
    *names, last = (row.name for row in DEVICES.values() if row.is_served)
    why = "" if row is None else ", which this build of TVM has no code generator for"
    raise PlanError(
        f"expected a target of kind {', '.join(names)} or {last}, got {kind}{why}; "
        "choose one of them"
    )


def has_feature(target: Target, feature: str) -> bool:
    """Return whether a target has a set of instructions, by LLVM's name; False where none says."""
    return _has_feature(str(target), feature)


@lru_cache(maxsize=256)  # TVM takes 0.2 ms to say it, and every plan asks
def _has_feature(target: str, feature: str) -> bool:
    of = Target(target)
    return device_of(of).has_features and bool(target_has_features(feature, of))


def compute_capability(arch: str) -> int:
    """90 of ``sm_90a``; 0 where there is no such name."""
    match = re.fullmatch(r"sm_(\d+)[a-z]*", arch)
    return int(match[1]) if match else 0


def _by_another(row: Device) -> Device:
    """The row of a kind whose kernels are those of another one, in blocks of its own."""
    other = DEVICES[row.instead]
    return replace(
        other,
        name=row.name,
        generator=other.name,
        in_browser=False,
        subgroups=frozenset(),
        threads=row.threads,
        shared_bytes=row.shared_bytes,
    )
