"""Polynomials for the elementary functions in the vector loops of a loop that runs as it is.

A loop of `tvm_scan.loops` that is no scan has its vectors written in it; LLVM would call a library
for each cell of an ``exp`` in one.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.target import Target
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.schedules.common.ir import Kernel
from tvm_scan.schedules.common.lanes import clear
from tvm_scan.schedules.common.polynomials import Pool
from tvm_scan.schedules.common.stack import on_stack
from tvm_scan.schedules.cpu.vector_math import with_vector_math
from tvm_scan.schedules.machine.machine import Machine


def with_vector_loops(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Replace float32 functions in the vector loops of a function.

    Parameters
    ----------
    func : PrimFunc
        With loops of kind ``T.vectorized`` in its blocks, of constant extent.
    target : tvm.target.Target
        A CPU.

    Returns
    -------
    PrimFunc
        `func` itself where no vector loop calls any.
    """
    ldexp = Machine.of(target).ldexp
    body = tvm_ffi.structural_map(func.body, (SBlock, lambda block: _in_block(block, ldexp)))
    if body.same_as(func.body):
        return func
    return tirx.PrimFunc(func.params, body, func.ret_type, attrs=func.attrs)


def _in_block(block: SBlock, ldexp: bool) -> SBlock:
    pools: dict[int, Pool] = {}

    def on_for(loop: tirx.For) -> Any:
        width = tir.as_int(loop.extent)
        if loop.kind != ForKind.VECTORIZED or width is None:
            return loop
        pool = pools.setdefault(width, Pool(width))
        body = with_vector_math(loop.body, pool, loop.loop_var, ldexp=ldexp)
        return tir.loop_with(loop, body)

    body = tvm_ffi.structural_map(block.body, (tirx.For, on_for))
    buffers = [buffer for pool in pools.values() for buffer in pool.buffers]
    if not buffers:
        return block
    # Without a use outside of the vector loops TVM would shrink these to one cell.
    body = tir.seq([clear(buffers), body])
    kernel = on_stack(Kernel(block.name_hint, [], [], body, buffers))
    allocs = [*block.alloc_buffers, *kernel.allocs]
    return tir.block_with(block, body=kernel.body, alloc_buffers=allocs)
