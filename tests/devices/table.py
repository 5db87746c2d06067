"""Builders times algebras times devices: what runs, and why what is refused is refused."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tvm.target import Target

from tests.gpu import test_table as cuda
from tests.gpu.test_table import ALGEBRAS as with_states
from tests.support.drivers import amdgpu, emit, metal
from tests.support.recurrence_cases import Case, exact_inputs
from tests.support.tiers import longer
from tvm_scan import ScanPlan, default_plan, extract, parallelize
from tvm_scan.errors import PlanError
from tvm_scan.schedules.launch import Program, opencl, webgpu

__all__ = [
    "ALGEBRAS",
    "BUILDERS",
    "DRIVERS",
    "READ",
    "RUN",
    "TARGETS",
    "faults",
    "listed",
    "plan_of",
    "problem",
    "program",
    "refusal",
    "scheduled",
]

_STATELESS = Case("selective_scan", sizes=(("channels", 3), ("batch", 1), ("states", 4)))
#: Of a selective scan, also what has few enough buffers for WebGPU.
ALGEBRAS = [*with_states, "selective scan, no states"]

#: The limits that every implementation has.
TARGETS = {
    "opencl": Target({"kind": "opencl"}, host="llvm"),
    "webgpu": Target({"kind": "webgpu", "max_shared_memory_per_block": 16384}, host="llvm"),
    "vulkan": Target({"kind": "vulkan"}, host="llvm"),
    "metal": Target({"kind": "metal"}, host="llvm"),
    "rocm": Target({"kind": "rocm", "mcpu": "gfx90a"}, host="llvm"),
}
#: Vulkan's kernels are WebGPU's, Metal's text runs in the words of OpenCL, code of ROCm nowhere.
DRIVERS = {"opencl": opencl, "webgpu": webgpu, "vulkan": webgpu, "metal": metal}
#: Those with a text of their own; the full tier takes all.
RUN = longer(["opencl", "webgpu"], list(DRIVERS))
#: Whose kernels are read.
READ = ("metal", "rocm")
_TREE = "items_per_thread=3, block_tree="
_TILES = f"cuda/serial_tiles(threads_per_block=32, {_TREE}kogge_stone, "
#: Trees within what is a warp elsewhere and beyond it, of odd and even numbers of levels.
BUILDERS = {
    "the default": None,
    "a thread a lane": "cuda/sequential(threads_per_block=32)",
    "lanes": "cuda/lanes(threads_per_block=32)",
    "chunks": "cuda/lanes(threads_per_block=32, chunks=4)",
    **{
        f"{algorithm}, {tree}": f"cuda/{algorithm}(threads_per_block={threads}, {_TREE}{tree})"
        for algorithm, tree, threads in (
            ("serial_tiles", "blelloch", 128),
            ("serial_tiles", "kogge_stone", 64),
            ("three_phase", "blelloch", 8),
            ("three_phase", "kogge_stone", 16),
        )
    },
    "tiles": f"{_TILES}block_load=transposed)",
    "phases, transposed": _TILES.replace("serial_tiles", "three_phase") + "block_load=transposed)",
    "lanes of a block": f"{_TILES}lanes_per_block=2)",
    "lanes of a block, tiles": f"{_TILES}block_load=transposed, lanes_per_block=2)",
    # What only some devices have.
    "shuffles": "cuda/serial_tiles(threads_per_block=32, items_per_thread=3, block_tree=warp)",
    "shared lanes": "cuda/lanes(threads_per_block=32, items_per_thread=2, threads_per_lane=2)",
    "several buffers": f"{_TILES}block_load=transposed, stages=2)",
    "look-back": f"cuda/single_pass(threads_per_block=32, {_TREE}kogge_stone)",
}
#: Devices whose kernels are WGSL.
_WGSL = "webgpu|vulkan"
#: Patterns of a device, a builder and an algebra, and why the plan is refused.
REFUSED = (
    (_WGSL, ".*", "sum", "expected dtypes that .* has, got int64 for I_x"),
    (
        f"{_WGSL}|metal",
        ".*",
        "affine of doubles",
        "expected dtypes that .* has, got float64 for I_g",
    ),
    (_WGSL, ".*", "affine of halves", "expected dtypes that .* has, got bfloat16 for I_g"),
    (
        _WGSL,
        "(?!the default|a thread a lane|lanes$|shared lanes).*",
        "automaton",
        "elements of dtypes that .* has, got int64; use algorithm lanes",
    ),
    (
        "(?!rocm).*",
        "shuffles",
        ".*",
        r"with shuffles of 32 threads .* in warps of \d+; use another",
    ),
    (
        "rocm",
        "shuffles",
        "sum|affine of doubles|automaton",
        "shuffles of rocm move, of at most 32 bits, got .*; use block_tree=blelloch",
    ),
    (".*", "shared lanes", ".*", "with shuffles of 32 threads .* leave threads_per_lane"),
    (".*", "several buffers", ".*", "asynchronous copies .* which has none; use stages=1"),
    (".*", "look-back", ".*", "stores release .* where they do not; use algorithm three_phase"),
    (_WGSL, ".*", "selective scan", "at most 8 buffers in a kernel of .*, got 1[02] .*pack"),
    (
        _WGSL,
        "chunks|three_phase.*|phases.*",
        "matrices|complex|selective scan, no states",
        r"at most 8 buffers .* of the loop itself, \d between kernels\); use an algorithm of one",
    ),
)


@cache
def loop_of(algebra: str) -> Any:
    """The sequential loop, with symbolic sizes."""
    if algebra != ALGEBRAS[-1]:
        return cuda.loop_of(algebra)
    return _STATELESS.function(None, exact_inputs(_STATELESS, 1)[0])


@cache
def recurrence_of(algebra: str) -> Any:
    """What is found in it."""
    return extract(loop_of(algebra))


def problem(algebra: str, length: int) -> Any:
    """Inputs, results, and a tolerance, which is zero where every order is exact."""
    if algebra != ALGEBRAS[-1]:
        return cuda.problem(algebra, length)
    _, inputs, want = exact_inputs(_STATELESS, length)
    return list(inputs.values()), [a.astype("float32") for a in want.values()], 0.0


def plan_of(device: str, builder: str, algebra: str) -> ScanPlan:
    """The plan of a triple.

    Raises
    ------
    PlanError
        If the device lacks what every plan needs.
    """
    text = BUILDERS[builder]
    if text is None:
        return default_plan(TARGETS[device], recurrence_of(algebra))
    return ScanPlan.parse(text)


@cache
def refusal(device: str, builder: str, algebra: str) -> str | None:
    """Why a plan is refused; None where it runs."""
    try:
        plan = plan_of(device, builder, algebra)
        plan.check(TARGETS[device], recurrence_of(algebra))
    except PlanError as error:
        return str(error)
    return None


def listed(device: str, builder: str, algebra: str) -> str | None:
    """The reason that stands in `REFUSED`."""
    for *patterns, reason in REFUSED:
        names = (device, builder, algebra)
        if all(re.fullmatch(p, name) for p, name in zip(patterns, names, strict=True)):
            return reason
    return None


@cache
def program(device: str, builder: str, algebra: str) -> Program:
    """Kernels of a triple."""
    return emit(scheduled(device, builder, algebra), TARGETS[device])


def scheduled(device: str, builder: str, algebra: str) -> Any:
    """The loop under the plan."""
    text = BUILDERS[builder]
    plan = None if text is None else ScanPlan.parse(text)
    return parallelize(loop_of(algebra), TARGETS[device], plan)


def faults(device: str, builder: str, algebra: str) -> list[str]:
    """What is wrong with kernels that are read rather than run: of Metal and ROCm."""
    plan, kernels = plan_of(device, builder, algebra), program(device, builder, algebra).kernels
    if device == "rocm":
        shared = plan.smem_bytes(recurrence_of(algebra))
        return [fault for k in kernels.values() for fault in amdgpu.faults(k.source, shared)]
    # The same statements in OpenCL, which a driver takes.
    target = TARGETS["opencl"]
    others = emit(parallelize(loop_of(algebra), target, plan), target).kernels.values()
    pairs = zip(kernels.values(), others, strict=True)
    return [fault for k, o in pairs for fault in metal.faults(k, o.source.count(opencl.BARRIER))]
