"""The tree of a plan as text."""

from __future__ import annotations

from tvm_scan import Recurrence, ScanPlan
from tvm_scan.cli.equation import number
from tvm_scan.schedules.gpu.checks import element_bytes

__all__ = ["tree_text"]

_SHOWN = 8


def tree_text(found: Recurrence, plan: ScanPlan) -> str:
    """Draw how the plan runs one lane.

    Parameters
    ----------
    found : Recurrence
        What runs.
    plan : ScanPlan
        How.

    Returns
    -------
    str
        Several lines.
    """
    length = number(found.time.extent)
    lanes = " x ".join(number(a.extent) for a in found.lanes) or "1"
    head = f"{lanes} lane(s) of {length} steps"
    if plan.device == "cpu":
        return "\n".join([head, *_cpu(plan, length)])
    if plan.algorithm in ("sequential", "lanes"):
        cut = "chunks  {} of time: reduce all but the last, scan their elements, replay all"
        return "\n".join(
            [
                head,
                *([cut.format(plan.chunks)] if plan.chunks else []),
                f"grid    {_of_lane(plan)} per lane, {plan.threads_per_block} threads per block",
                f"thread  ─▶ t = 0 ─▶ 1 ─▶ 2 ─▶ … ─▶ {length} - 1   {_exchange(plan)}",
            ]
        )
    grid = {
        "serial_tiles": f"one block per lane walks tiles of {plan.tile} steps, carry in registers",
        "three_phase": f"tiles of {plan.tile} steps: reduce all, scan their elements, replay all",
        "single_pass": f"tiles of {plan.tile} steps: each waits for the elements of those before",
    }[plan.algorithm]
    shared = f"{plan.smem_bytes(found)} bytes of shared memory"
    tree = {
        "blelloch": f"Blelloch tree in padded {shared}",
        "kogge_stone": f"Kogge-Stone tree in {shared}",
        "warp": f"shuffles within warps, their totals through {shared}",
    }[plan.block_tree]
    size = f"{element_bytes(found)} bytes per element"
    picture = ["", *_blelloch(plan.threads_per_block)]
    return "\n".join(
        [
            head,
            f"grid    {grid}",
            f"block   {plan.threads_per_block} threads, {tree} ({size})",
            f"thread  {plan.items_per_thread} steps in a row, reduced in registers, then replayed",
            *([f"loads   {_tiles(plan)}"] if plan.block_load == "transposed" else []),
            *(picture if plan.block_tree == "blelloch" else _doubling(plan.threads_per_block)),
        ]
    )


def _of_lane(plan: ScanPlan) -> str:
    shared = plan.threads_per_lane
    return f"{shared} threads, some of the states each," if shared > 1 else "one thread"


def _exchange(plan: ScanPlan) -> str:
    if plan.threads_per_lane == 1:
        return "(serial, no exchange)"
    tiles = f", {_tiles(plan)}" if plan.block_load == "transposed" else ""
    return f"(serial; {plan.items_per_thread} steps prepared by each thread, then shuffled{tiles})"


def _tiles(plan: ScanPlan) -> str:
    """Where the inputs of a tile wait."""
    if plan.stages == 1:
        return "tiles in shared memory"
    return f"tiles in {plan.stages} buffers of shared memory, copied ahead"


def _cpu(plan: ScanPlan, length: str) -> list[str]:
    if plan.algorithm == "sequential":
        return [f"core    ─▶ t = 0 ─▶ 1 ─▶ … ─▶ {length} - 1   (the loop as it was written)"]
    if plan.algorithm == "lanes":
        how = "in vector lanes" if plan.vectorize else "interleaved"
        together = f"{plan.lane_block} lanes {how}" if plan.lane_block > 1 else "one lane"
        return [
            f"cores   blocks of lanes side by side; {together} at a time",
            f"block   ─▶ t = 0 ─▶ 1 ─▶ … ─▶ {length} - 1",
        ]
    shown = min(plan.chunks, _SHOWN)
    more = " …" if plan.chunks > shown else ""
    boxes = "  ".join(f"[chunk {i}]" for i in range(shown)) + more
    arrows = "  ".join("    │    " for _ in range(shown))
    return [
        f"cores   {plan.chunks} chunks per lane, {plan.lane_block} interleaved in a task",
        "",
        f"reduce  {boxes}      each chunk to one element, side by side",
        f"        {arrows}",
        f"scan    {'──▶'.join('    ●   ' for _ in range(shown))}{more}      elements in order",
        f"        {arrows}",
        f"replay  {boxes}      the loop body from each chunk's carry",
    ]


def _blelloch(threads: int) -> list[str]:
    """Upsweep and downsweep of the first threads; a bullet is a combine."""
    shown = min(threads, _SHOWN)
    levels = shown.bit_length() - 1
    rows = [
        "        "
        + "  ".join(f"t{i:<2}" for i in range(shown))
        + ("  …" if threads > shown else "")
    ]
    for level in range(levels):
        rows.append("up      " + _level(shown, 2 << level, "┴", "●"))
    rows.append(
        "        " + "     " * (shown - 1) + "0  ◀ the identity; the sum is the tile's element"
    )
    for level in reversed(range(levels)):
        rows.append("down    " + _level(shown, 2 << level, "○", "●"))
    rows.append(
        "        ● combine   ○ takes the prefix of its parent   each thread now has its prefix"
    )
    return rows


def _doubling(threads: int) -> list[str]:
    """Levels of a scan by doubling distances, for the first threads."""
    shown = min(threads, _SHOWN)
    rows = ["", "        " + "  ".join(f"t{i:<2}" for i in range(shown)) + "  …"]
    distance = 1
    while distance < shown:
        cells = ["│    " if i < distance else "●    " for i in range(shown)]
        rows.append(f"by {distance:<4} " + "".join(cells).rstrip())
        distance *= 2
    rows.append("        ● combine with the thread that far to the left, and so on, doubling")
    return rows


def _level(shown: int, span: int, left: str, right: str) -> str:
    cells = ["│    "] * shown
    for node in range(span - 1, shown, span):
        low = node - span // 2
        cells[low] = left + "────"
        for between in range(low + 1, node):
            cells[between] = "─────"
        cells[node] = right + "    "
    return "".join(cells).rstrip()
