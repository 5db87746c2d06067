"""Sums over a state in a strip of lanes: in registers while the loop over the state runs."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.schedules.common.polynomials import Pool


class StripSums(Pool):
    """Registers of one vector of lanes, for what a loop adds to again and again.

    A block of more lanes than a vector operation has keeps ``y[lane]`` in memory, and LLVM cannot
    tell that ``for n: y[lane] += C[n] h[n, lane]`` writes no other array: every addition waited for
    the store of the one before it, which takes twice an addition (the read-out of 64 states of
    linear attention in blocks of 64 lanes: 950 instead of 480 us).

    Parameters
    ----------
    width : int
        Lanes of a vector operation.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, "sum")

    def __call__(self, stmt: Any, lane: Any) -> Any:
        """``stmt`` with the sums of its loops in registers.

        Parameters
        ----------
        stmt : Stmt
            What a vector loop does for a lane.
        lane : Expr
            Index of the lane in the block.
        """

        def on_loop(loop: tirx.For) -> Any:
            body, before, after = loop.body, [], []
            for number, cell in enumerate(_sums_of(loop)):
                register = self.get(number, tir.dtype_of(cell.source))
                there = tirx.BufferLoad(register, [lane])
                body = _moved(body, cell, register, lane)
                before.append(tirx.BufferStore(register, cell, [lane]))
                after.append(tirx.BufferStore(cell.source, there, list(cell.indices)))
            if not before:
                return loop
            return tir.seq([*before, tir.loop_with(loop, body), *after])

        return tvm_ffi.structural_map(stmt, (tirx.For, on_loop))


def _sums_of(loop: tirx.For) -> list[TensorLoad]:
    """Cells of local buffers that every iteration changes, the same one each time and no other."""
    nested = tir.nodes(loop.body, tirx.For, tirx.IfThenElse)
    if nested or not (tir.as_int(loop.extent) or 0) > 1:
        return []
    cells = tir.each_once(
        part if isinstance(part, TensorLoad) else tirx.BufferLoad(part.buffer, part.indices)
        for part in tir.nodes(loop.body, tirx.BufferStore, TensorLoad)
    )
    stored = tir.buffers_stored(loop.body)
    return [
        cell
        for cell in cells
        if str(cell.source.scope()) == "local"
        and cell.source in stored
        and not tir.contains_var(list(cell.indices), [loop.loop_var])
        and sum(cell.source.same_as(other.source) for other in cells) == 1
    ]


def _moved(stmt: Any, cell: TensorLoad, register: Var, lane: Any) -> Any:
    return tir.map_accesses(
        stmt, lambda buffer, _: (register, [lane]) if buffer.same_as(cell.source) else None
    )
