"""Copies from global to shared memory that go on while a thread computes: ``cp.async`` of sm_80.

A thread's copies since its last commit are a group. ``wait(n)`` returns when all but the thread's
last ``n`` groups have arrived; other threads see them after a barrier.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.script import tirx as T

from tvm_scan.schedules.ir import int_const

__all__ = ["barrier", "can_copy", "commit", "copy", "wait"]


def can_copy(count: int) -> bool:
    """Whether there is an instruction for so many bytes."""
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


def commit() -> Any:
    """End the thread's group of copies."""
    return tirx.Evaluate(T.ptx["cp.async.commit_group"]())


def wait(left: int) -> Any:
    """Wait for all but the thread's last ``left`` groups."""
    return tirx.Evaluate(T.ptx["cp.async.wait_group"](left))


def barrier() -> Any:
    """All threads of the block wait for one another."""
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", "shared"))
