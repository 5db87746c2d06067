"""Copies from global to shared memory that go on while a thread computes: ``cp.async`` of sm_80.

A thread's copies of a tile are a group, which it waits for; other threads see them after a barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.script import tirx as T

from tvm_scan import tir
from tvm_scan.schedules.common.ir import int_const
from tvm_scan.schedules.gpu.thread.barriers import all_wait


def can_copy(count: int) -> bool:
    """Return whether there is an instruction for so many bytes."""
    return count in (4, 8, 16)


def copy(target: Var, to: list[Any], source: Var, where: list[Any], count: int) -> Any:
    """Begin to copy ``count`` bytes, at addresses that are multiples of it.

    Parameters
    ----------
    target, to : Var, list of Expr
        In shared memory: buffer, and indices of the first element.
    source, where : Var, list of Expr
        In global memory.
    count : int
        4, 8 or 16.
    """
    # Whole vectors pass by the first-level cache, which nobody reads again.
    name = "cp.async.cg.shared.global" if count == 16 else "cp.async.ca.shared.global"
    to_address = tirx.address_of(tirx.BufferLoad(target, to))
    from_address = tirx.address_of(tirx.BufferLoad(source, where))
    return tirx.Evaluate(T.ptx[name](to_address, from_address, int_const(count, "int32")))


def begin_ahead(buffers: int, fetch: Callable[[Any], Any], first: Any) -> Any:
    """Start, before the first tile, the copies that are under way while it is computed.

    Parameters
    ----------
    buffers : int
        Of a tile.
    fetch : callable
        ``fetch(tile)`` begins to copy a tile to its buffer; nothing beyond the last one.
    first : Expr
        Number of the first tile.
    """
    parts = [[fetch(first + tile), _commit()] for tile in range(buffers - 1)]
    return tir.seq([stmt for part in parts for stmt in part])


def next_tile(buffers: int, fetch: Callable[[Any], Any], tile: Any) -> Any:
    """Wait until a tile lies in its buffer, with the next ones on their way.

    The one barrier of several buffers says that every thread's copies of this tile have arrived,
    and that the buffer which is filled next, that of the tile before, is no longer read. Around
    a single buffer TVM puts the barriers.
    """
    ahead = buffers - 1
    if ahead == 0:
        return fetch(tile)
    return tir.seq([_wait(ahead - 1), all_wait(), fetch(tile + ahead), _commit()])


def _commit() -> Any:
    """End the thread's group of copies."""
    return tirx.Evaluate(T.ptx["cp.async.commit_group"]())


def _wait(left: int) -> Any:
    """Wait for all but the thread's last ``left`` groups."""
    return tirx.Evaluate(T.ptx["cp.async.wait_group"](left))
