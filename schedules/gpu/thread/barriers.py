"""Barriers that builders put themselves, and what TVM's pass that puts them is not to see.

That pass compares accesses to a buffer by their indices as texts: of two that differ it believes
that threads meet there, and puts a barrier between a write and a read. Where a builder knows
better, it hides the accesses from the pass and puts the barriers there. TVM must not lend the
memory of a hidden buffer to another one whose barriers it puts, nor the other way round: see
``Kernel.block``.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan.schedules.common.ir import as_dtype, int_const
from tvm_scan.schedules.gpu.thread.banks import WARP
from tvm_scan.schedules.machine.terms import block_barrier, warp_barrier

#: TVM's own key for what its pass leaves alone.
_HIDDEN = "hand_threaded"


def hidden(stmt: Any) -> Any:
    """Wrap a statement so that no barrier is put into it."""
    return tirx.AttrStmt(int_const(0, "int32"), _HIDDEN, int_const(1, "int32"), stmt)


def parity(number: Any) -> Any:
    """0 of an even number, 1 of an odd one: of an integer, or an expression not below 0."""
    return as_dtype(number % 2, "int32")


def all_wait() -> Any:
    """All threads of the block wait for one another; no condition may stand around it."""
    return block_barrier()


def wait(threads: int) -> Any:
    """The first ``threads`` threads of every row of the block wait for one another.

    Where these are a part of one warp, by the warp's own barrier, ``__syncwarp``, which becomes
    the block's on a device that has none; all threads of the block come here in either case.

    Parameters
    ----------
    threads : int
        A power of two; a row has no fewer threads, and a power of two itself.
    """
    return warp_barrier() if threads <= WARP else all_wait()
