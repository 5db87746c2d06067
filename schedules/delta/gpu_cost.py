"""Work of the blocks of a delta rule on a GPU, by the phases of a chunk; see ``chunk``.

Of products on tensor cores it counts what ``gpu_tensor`` issues, which is 0.7 of the instructions
in the machine code (128 x 128, a gate for each step: 6.1 thousand of 9.0 in a chunk of 16 steps):
the others are addresses and conditions.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.delta.gpu_block import COLUMNS
from tvm_scan.schedules.delta.tensor_tiles import (
    OCTET,
    Tiles,
    is_gated,
    is_uniform,
    products_in_line,
)
from tvm_scan.schedules.machine.gpu_chip import BARRIER, MEMORY, Work

if TYPE_CHECKING:
    from tvm_scan.schedules.delta.gpu_plan import DeltaBlocks


#: Instructions of a multiply-add of two cells of shared memory: two loads, and the index. Cycles of
#: a thread for it, which waits for both and for the sum before; where chunks pass on states, whose
#: cells it has in order. Of 250 kernels on an H100.
_TERM, _WAITED, _PASSED = 9.0, 96.0, 12.0
#: Accesses of a warp to shared memory for it, and cycles until one answers.
_ACCESSES, _SHARED = 4.4, 25.0
#: Of a product in three of tf32: instructions that split a fragment of A, or one of B, which is
#: loaded, and that multiply; the share of instructions that are counted.
_SPLIT_A, _PRODUCT, _COUNTED = 12.0, 10.0, 0.7
#: Cells of A and of B and the result in a fragment's instruction.
_FRAGMENT = 16 * 8 * 8


def blocks_work(
    rule: DeltaRule, states: float, length: float, plan: DeltaBlocks, columns: int | None = None
) -> Work:
    """Count what the blocks do.

    Parameters
    ----------
    rule : DeltaRule
        What runs.
    states, length : float
        Independent states, and steps of each.
    plan : DeltaBlocks
        Steps of a chunk, threads of a block, and what multiplies.
    columns : int, optional
        Of a state; those of the rule if not given.
    """
    steps, threads = plan.steps, plan.threads_per_block
    rows = known_extent(rule.rows.extent)
    columns = known_extent(rule.columns.extent) if columns is None else columns
    terms = len(rule.terms)
    reading = len(rule.reading)
    readers, cell = reading + len(rule.reads), tir.byte_size(rule.dtype)
    blocks = states * ceil(columns / COLUMNS)
    chunks = ceil(length / steps)
    pairs = steps * steps / 2.0
    # Multiply-adds of a block for a chunk: every entry of a triangle passes the gates between its
    # steps again; all steps read the state; the systems and outputs; the state after the chunk.
    adds = pairs * readers * terms * rows * (1 + steps / 6.0)
    adds += steps * COLUMNS * readers * rows
    adds += pairs * COLUMNS * readers * terms
    adds += rows * COLUMNS * steps * terms
    # On tensor cores a gate that all rows share is one cell a step.
    gates = not (plan.on_tensor_cores and is_uniform(rule))
    vectors = (gates + terms + readers) * steps * rows
    amounts = (terms + reading) * steps * COLUMNS
    state = 2.0 * rows * COLUMNS
    moved = blocks * cell * (chunks * (vectors + amounts + steps * COLUMNS) + state)
    if plan.on_tensor_cores:
        return _tensor_work(rule, blocks, chunks, plan, moved)
    issued = blocks * chunks * (adds * _TERM + 4.0 * (vectors + amounts)) / 32
    # One behind the system of a step, and behind every other phase.
    barriers = chunks * (5.0 + reading * steps)
    each = adds * _WAITED / threads
    chain = chunks * (MEMORY + each) + barriers * (BARRIER + _SHARED)
    return Work(
        moved=moved,
        specials=0.0,
        issued=issued,
        barriers=barriers,
        shared=blocks * chunks * adds * _ACCESSES / 32,
        threads=blocks * threads,
        chain=chain,
        once=0.0,
        launches=1.0,
        lines=blocks * chunks * (adds * _ACCESSES + vectors + amounts) / 32,
    )


def _tensor_work(
    rule: DeltaRule, blocks: float, chunks: int, plan: DeltaBlocks, moved: float
) -> Work:
    """Count what blocks of ``gpu_tensor`` do."""
    steps, warps = plan.steps, plan.threads_per_block // 32
    tiles = Tiles.of(known_extent(rule.rows.extent), plan.threads_per_block)
    terms, octets = len(rule.terms), steps // OCTET
    reading = len(rule.reading)
    readers = reading + len(rule.reads)
    # Of a warp: what the steps read of its rows, and what they add to them.
    per_warp = tiles.per_group * (_SPLIT_A + readers * octets * _PRODUCT)
    per_warp += tiles.per_group * terms * (octets * _PRODUCT + 8.0)
    products = float(tiles.per_group * warps * octets * (readers + terms))
    # The triangles, all pairs of octets that meet, once for each level of gates.
    has_levels = is_gated(rule) and not is_uniform(rule)
    times = steps.bit_length() - 1 if has_levels else 1
    pairs = terms * readers * octets * (octets + 1) / 4.0 * times
    rounds = ceil(pairs / times / warps) * times * tiles.depth / OCTET
    triangle = _SPLIT_A + _PRODUCT + 2.0
    products += pairs * tiles.depth / OCTET
    # By multiply-adds: one warp solves, all emit; and all load, and give gates to the vectors.
    solve = 2.0 * products_in_line(rule, steps)
    emit = 3.0 * steps * steps * len(rule.reads) * terms
    cells = (terms + readers) * steps * tiles.depth
    load = (5.0 * cells + 6.0 * (terms + reading) * steps * COLUMNS) / 32
    gates = (1.5 * cells * times + 3.0 * tiles.depth * steps) / 32 if has_levels else 0.0
    issued = per_warp * warps + pairs * tiles.depth / OCTET * triangle + solve + emit + load + gates
    longest = per_warp + rounds * triangle + solve + (emit + load + gates) / warps
    after = has_levels and any(read.after for read in rule.reads)
    barriers = 4.0 + 2.0 * after + (2.0 * times if has_levels else float(is_gated(rule)))
    lines = products * 1.5 + solve / 2 + 2.0 * emit / 3 + load / 3 + gates
    return Work(
        moved=moved,
        specials=0.0,
        issued=blocks * chunks * issued / _COUNTED,
        barriers=chunks * barriers,
        shared=blocks * chunks * lines,
        threads=blocks * plan.threads_per_block,
        chain=chunks * (MEMORY + longest / _COUNTED + barriers * (BARRIER + _SHARED)),
        once=0.0,
        launches=1.0,
        lines=blocks * chunks * lines,
        tensor=blocks * chunks * products * 3.0 * _FRAGMENT,
    )


def cut_work(rule: DeltaRule, states: float, length: float, plan: DeltaBlocks) -> Work:
    """Count what the passes over segments of time do, and the one from segment to segment."""
    cell, segments = tir.byte_size(rule.dtype), plan.chunks
    rows, columns = known_extent(rule.rows.extent), known_extent(rule.columns.extent)
    each = length / segments
    # Columns of the state, and of the identity.
    effects = blocks_work(rule, states * segments, each, plan)
    maps = blocks_work(rule, states * segments, each, plan, columns=rows)
    outputs = effects
    blocks = states * ceil(columns / COLUMNS)
    adds = float(rows * rows * COLUMNS)
    passed = states * segments * cell * (rows * rows + 3.0 * rows * columns)
    between = segments * (
        MEMORY + adds * _PASSED / plan.threads_per_block + 2 * (BARRIER + _SHARED)
    )
    parts = (effects, maps, outputs)
    return Work(
        moved=sum(part.moved for part in parts) + passed,
        specials=0.0,
        issued=sum(part.issued for part in parts) + blocks * segments * adds * _TERM / 32,
        barriers=sum(part.barriers for part in parts) + 2.0 * segments,
        shared=sum(part.shared for part in parts) + blocks * segments * adds / 32,
        threads=effects.threads,
        chain=max(effects.chain, maps.chain) + outputs.chain,
        once=0.0,
        launches=4.0,
        lines=sum(part.lines for part in parts) + blocks * segments * adds * _ACCESSES / 32,
        between=between,
        tensor=sum(part.tensor for part in parts),
    )
