"""Work of the blocks of a delta rule on a GPU, by the phases of a chunk; see ``chunk``."""

from __future__ import annotations

from math import ceil

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.delta.gpu_block import COLUMNS
from tvm_scan.schedules.machine.gpu_chip import BARRIER, MEMORY, Work

__all__ = ["blocks_work", "cut_work"]

#: Instructions of a multiply-add of two cells of shared memory: two loads, and the index.
_TERM = 4.0
#: Accesses of a warp to shared memory for it, and cycles until one answers.
_ACCESSES, _SHARED = 2.0, 25.0


def blocks_work(
    rule: DeltaRule,
    states: float,
    length: float,
    steps: int,
    threads: int,
    columns: int | None = None,
) -> Work:
    """Count what the blocks do.

    Parameters
    ----------
    rule : DeltaRule
        What runs.
    states, length : float
        Independent states, and steps of each.
    steps, threads : int
        Of a chunk, and of a block.
    columns : int, optional
        Of a state; those of the rule if not given.
    """
    rows = known_extent(rule.rows.extent)
    columns = known_extent(rule.columns.extent) if columns is None else columns
    terms = len(rule.terms)
    reading = sum(term.source is not None for term in rule.terms)
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
    vectors = (1 + terms + readers) * steps * rows
    amounts = (terms + reading) * steps * COLUMNS
    state = 2.0 * rows * COLUMNS
    moved = blocks * cell * (chunks * (vectors + amounts + steps * COLUMNS) + state)
    issued = blocks * chunks * (adds * _TERM + 4.0 * (vectors + amounts)) / 32
    # Two for the system of a step, and one around every phase.
    barriers = chunks * (8.0 + 2.0 * reading * steps)
    each = adds * _TERM / threads
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


def cut_work(
    rule: DeltaRule, states: float, length: float, steps: int, threads: int, segments: int
) -> Work:
    """Count what the passes over segments of time do, and the one from segment to segment."""
    cell = tir.byte_size(rule.dtype)
    rows, columns = known_extent(rule.rows.extent), known_extent(rule.columns.extent)
    each = length / segments
    # Columns of the state, and of the identity.
    effects = blocks_work(rule, states * segments, each, steps, threads)
    maps = blocks_work(rule, states * segments, each, steps, threads, columns=rows)
    outputs = effects
    blocks = states * ceil(columns / COLUMNS)
    adds = float(rows * rows * COLUMNS)
    passed = states * segments * cell * (rows * rows + 3.0 * rows * columns)
    between = segments * (MEMORY + adds * _TERM / threads + 2 * (BARRIER + _SHARED))
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
    )
