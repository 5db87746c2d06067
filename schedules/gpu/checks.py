"""What a CUDA plan takes, and what it must hold to: threads, items, shared memory."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.choose.shape_key import sizes_of
from tvm_scan.schedules.common.state_split import NoSplit, StateSplit, split_of
from tvm_scan.schedules.gpu.block.blelloch import padded
from tvm_scan.schedules.gpu.blocks import check_blocks
from tvm_scan.schedules.gpu.staging_checks import check_staging, check_walk_staging, tile_bytes
from tvm_scan.schedules.gpu.thread.ordered_memory import is_word
from tvm_scan.schedules.gpu.walk.chunk_checks import check_chunks
from tvm_scan.schedules.gpu.walk.exponentials import OF, exponentials_in_base_two
from tvm_scan.schedules.gpu.warp.tree import can_shuffle
from tvm_scan.schedules.machine.limits import Limits

if TYPE_CHECKING:
    from tvm_scan.schedules.plan import ScanPlan

__all__ = [
    "TREES",
    "carry_threads",
    "check_cuda",
    "element_bytes",
    "element_parts",
    "shared_bytes",
    "takes_single_pass",
    "takes_warp_tree",
]

#: The trees over the threads of a block.
TREES = ("blelloch", "kogge_stone", "warp")
_TREE_ALGORITHMS = ("serial_tiles", "three_phase", "single_pass")
_WARP = 32
#: Bytes by which a block tells its threads which tile it has.
_TICKET = 4
#: TVM aligns every shared array to this many bytes.
_ALIGNMENT = 64


def element_parts(recurrence: Recurrence) -> list[tuple[int, str]]:
    """Cells and dtype of every part of every group's element."""
    return [
        (prod(int(axis.extent) for axis in recurrence.state_axes(group)), dtype)
        for group in recurrence.groups
        for dtype in group.algebra.dtypes
    ]


def element_bytes(recurrence: Recurrence) -> int:
    """Bytes of one element of the whole state of a lane."""
    return sum(cells * tir.byte_size(dtype) for cells, dtype in element_parts(recurrence))


def takes_warp_tree(recurrence: Recurrence) -> bool:
    """Whether every part of the elements can be shuffled."""
    return all(can_shuffle(dtype) for _, dtype in element_parts(recurrence))


def takes_single_pass(recurrence: Recurrence) -> bool:
    """Whether blocks can hand elements and carries to each other."""
    return all(is_word(dtype) for dtype in _handed_over(recurrence))


def _handed_over(recurrence: Recurrence) -> list[str]:
    carried = [dtype for _, dtype in element_parts(recurrence)]
    return [*carried, *(carry.dtype for carry in recurrence.carries)]


def shared_bytes(plan: ScanPlan, recurrence: Recurrence) -> int:
    """Shared memory of one block in bytes: every part of every element, in the tree's places."""
    if plan.device != "cuda" or plan.algorithm == "sequential":
        return 0
    if plan.algorithm == "lanes":
        return _aligned(tile_bytes(plan, recurrence))
    threads, lanes = plan.threads_per_block, plan.lanes_per_block
    if plan.algorithm == "three_phase" and lanes == 1:
        threads = max(threads, carry_threads(plan, recurrence))
    arrays = [
        slots * cells * tir.byte_size(dtype) * lanes
        for cells, dtype in element_parts(recurrence)
        for slots in _slots(plan.block_tree, threads, dtype)
    ]
    ticket = [_TICKET] if plan.algorithm == "single_pass" else []
    return _aligned([*arrays, *tile_bytes(plan, recurrence), *ticket])


def _aligned(sizes: list[int]) -> int:
    """Bytes of arrays, in whatever order the assembler lays them out."""
    return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)


def carry_threads(plan: ScanPlan, recurrence: Recurrence) -> int:
    """Threads of a block that scans the tiles of a lane, the middle one of three phases.

    As many as have registers for four elements; with trees in shared memory, as many as the
    plan has threads, whose elements fit there.
    """
    if plan.block_tree != "warp":
        return plan.threads_per_block
    return 256 if element_bytes(recurrence) <= 64 else 128


def _slots(tree: str, threads: int, dtype: str) -> list[int]:
    """Elements that each shared array of a tree holds."""
    if tree == "warp":
        return [2 * threads // _WARP] if threads > _WARP else []
    if tree == "kogge_stone":
        return [2 * threads]
    return [padded(threads - 1, dtype) + 1, 1]


def check_cuda(plan: ScanPlan, limits: Limits, recurrence: Recurrence) -> None:
    """Check a plan for CUDA.

    Parameters
    ----------
    plan : ScanPlan
        Whose ``device`` is ``cuda``.
    limits : Limits
        Of the target.
    recurrence : Recurrence
        What will run.

    Raises
    ------
    PlanError
        With the number that was expected and the one that was found.
    """
    threads = plan.threads_per_block
    check_share(plan, recurrence)
    check_chunks(plan, recurrence)
    if plan.algorithm in ("sequential", "lanes"):
        plan.require(
            1 <= threads <= limits.threads,
            f"1 to {limits.threads} threads",
            f"threads_per_block={threads}",
            "use fewer threads per block",
        )
        if plan.threads_per_lane != 1:
            _check_shared_lanes(plan, recurrence)
        check_walk_staging(plan, limits, recurrence)
        _check_memory(plan, limits, recurrence)
        check_blocks(plan, recurrence)
        return
    plan.require(
        plan.threads_per_lane == 1,
        "threads_per_lane=1 in a tree",
        f"threads_per_lane={plan.threads_per_lane}",
        "use algorithm lanes",
    )
    plan.require(
        2 <= threads <= limits.threads,
        f"2 to {limits.threads} threads per block",
        f"threads_per_block={threads}",
        "use fewer threads per block",
    )
    _check_tree(plan, recurrence)
    check_staging(plan, limits, recurrence)
    plan.require(
        1 <= plan.items_per_thread <= 64,
        "1 to 64 items per thread",
        f"items_per_thread={plan.items_per_thread}",
        "use 4 to 16",
    )
    if plan.algorithm == "three_phase":
        least = carry_threads(plan, recurrence)
        plan.require(
            least <= limits.threads,
            f"a device with blocks of {least} threads, for the tiles' carries",
            f"at most {limits.threads}",
            "use another tree",
        )
    if plan.algorithm == "single_pass":
        _check_single_pass(plan, recurrence)
    _check_memory(plan, limits, recurrence)
    check_blocks(plan, recurrence)


def _check_memory(plan: ScanPlan, limits: Limits, recurrence: Recurrence) -> None:
    used, threads = shared_bytes(plan, recurrence), plan.threads_per_block
    fewer = "fewer stages, or " if plan.stages > 1 else ""
    plan.require(
        used <= limits.shared_bytes,
        f"at most {limits.shared_bytes} bytes of shared memory",
        f"{used} bytes ({element_bytes(recurrence)} per thread, padded, for {threads} threads)",
        f"use {fewer}fewer threads per block",
    )


def _check_shared_lanes(plan: ScanPlan, recurrence: Recurrence) -> None:
    shared, found = plan.threads_per_lane, split_of(recurrence)
    plan.require(
        plan.algorithm == "lanes" and shared in (2, 4, 8, 16, 32),
        "2, 4, 8, 16 or 32 threads per lane, in algorithm lanes",
        f"threads_per_lane={shared}",
        "leave it at 1",
    )
    plan.require(
        plan.threads_per_block % _WARP == 0,
        f"whole warps of {_WARP} threads for shared lanes",
        f"threads_per_block={plan.threads_per_block}",
        f"use {max(_WARP, plan.threads_per_block // _WARP * _WARP)}",
    )
    plan.require(
        1 <= plan.items_per_thread <= 16,
        "1 to 16 items per thread of shared lanes",
        f"items_per_thread={plan.items_per_thread}",
        "use 4",
    )
    plan.require(
        isinstance(found, StateSplit),
        "a step whose states are independent but for sums over them",
        str(found) if isinstance(found, NoSplit) else "one",
        "leave threads_per_lane at 1",
    )
    states = found.states if isinstance(found, StateSplit) else 0
    plan.require(
        states % shared == 0,
        "states divisible by threads_per_lane",
        f"{states} states, threads_per_lane={shared}",
        "use fewer threads per lane",
    )


def check_share(plan: ScanPlan, recurrence: Recurrence) -> None:
    """Check the share of exponentials that polynomials compute."""
    if plan.exp_share == 0:
        return
    plan.require(
        0 < plan.exp_share <= OF and plan.threads_per_lane > 1,
        f"an exp_share of 0 to {OF}, with several threads per lane",
        f"exp_share={plan.exp_share}, threads_per_lane={plan.threads_per_lane}",
        "leave it at 0",
    )
    plan.require(
        exponentials_in_base_two(recurrence) > 0,
        "exponentials exp(x a) of float32 in the loop over the states, where a is an input that "
        "does not change with time",
        "none",
        "leave exp_share at 0",
    )


def _check_single_pass(plan: ScanPlan, recurrence: Recurrence) -> None:
    plan.require(
        plan.block_load == "direct" and plan.lanes_per_block == 1,
        "block_load=direct and lanes_per_block=1 in a single pass",
        f"block_load={plan.block_load}, lanes_per_block={plan.lanes_per_block}",
        "leave them, or use algorithm serial_tiles",
    )
    plan.require(
        takes_single_pass(recurrence),
        "elements and carries of 32 or 64 bits for a single pass",
        ", ".join(dict.fromkeys(_handed_over(recurrence))),
        "use algorithm three_phase",
    )
    rows, length = sizes_of(recurrence)
    if rows is not None and length is not None:
        tiles = rows * -(-length // plan.tile)
        plan.require(
            tiles < 1 << 31,
            "fewer than 2^31 tiles, which tickets of 32 bits count",
            f"{tiles} tiles",
            "use larger tiles",
        )


def _check_tree(plan: ScanPlan, recurrence: Recurrence) -> None:
    threads, tree = plan.threads_per_block, plan.block_tree
    plan.require(
        tree in TREES,
        "one of " + ", ".join(TREES),
        f"block_tree={tree}",
        "leave block_tree at its default",
    )
    names = {"blelloch": "Blelloch", "kogge_stone": "Kogge-Stone", "warp": "warp"}
    plan.require(
        threads & (threads - 1) == 0,
        f"a power of two for the {names[tree]} tree",
        f"threads_per_block={threads}",
        f"use {1 << (threads.bit_length() - 1)}",
    )
    if tree == "warp":
        plan.require(
            threads % _WARP == 0,
            f"whole warps of {_WARP} threads for the warp tree",
            f"threads_per_block={threads}",
            f"use {_WARP}, or another tree",
        )
        plan.require(
            takes_warp_tree(recurrence),
            "elements of 32 or 64 bits for the warp tree",
            ", ".join(dict.fromkeys(dtype for _, dtype in element_parts(recurrence))),
            "use block_tree=blelloch",
        )
