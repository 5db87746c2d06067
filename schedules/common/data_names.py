"""Names of integers that are data, kept from passes that take every named integer for an index.

TVM 0.27 asks of every access of a block which cells it may touch, and of every named integer of 32
or 64 bits which numbers it may be. It adds what the name stands for to what it knows of indices,
and simplifies all of that again at every access that follows: of an element of integers, products
of products. A filter of order 2 took two minutes. Of a register TVM asks nothing.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.schedules.common.ir import int_const, like_register

_INDEX_DTYPES = ("int32", "int64")


def with_data_in_registers(nest: Any) -> Any:
    """Hold named integers that no index uses in registers, on a CPU.

    Parameters
    ----------
    nest : Stmt
        A loop nest over blocks.

    Returns
    -------
    Stmt
        The same object if nothing had to change.
    """
    if not any(tir.dtype_of(bind.var) in _INDEX_DTYPES for bind in tir.nodes(nest, tirx.Bind)):
        return nest
    return tvm_ffi.structural_map(nest, (SBlock, _in_registers))


def _in_registers(block: SBlock) -> Any:
    binds = tir.nodes(block.body, tirx.Bind)
    index_names = _index_variables(block.body, binds)
    # A register has no cell for each of a vector's.
    for loop in tir.nodes(block.body, tirx.For):
        if loop.kind == ForKind.VECTORIZED:
            for bind in tir.nodes(loop.body, tirx.Bind):
                index_names[bind.var] = True
    registers = tir.VarMap(
        (bind.var, like_register(bind.var.name, [1], tir.dtype_of(bind.var), "global"))
        for bind in binds
        if tir.dtype_of(bind.var) in _INDEX_DTYPES and bind.var not in index_names
    )
    if not registers:
        return block
    zero = [int_const(0, "int32")]

    def on_bind(bind: tirx.Bind) -> Any:
        register = registers.get(bind.var)
        return bind if register is None else tirx.BufferStore(register, bind.value, zero)

    held = tvm_ffi.structural_map(block.body, (tirx.Bind, on_bind))
    reads = tir.VarMap((var, tirx.BufferLoad(r, zero)) for var, r in registers.items())
    allocs = [*block.alloc_buffers, *(register for _, register in registers.items())]
    return tir.block_with(block, body=tir.substitute(held, reads), alloc_buffers=allocs)


def _index_variables(stmt: Any, binds: list[tirx.Bind]) -> tir.VarMap:
    """Variables in indices of accesses and bounds of loops, and in what names there stand for."""
    accesses = [*tir.nodes(stmt, tirx.BufferStore), *tir.loads(stmt)]
    used = [index for access in accesses for index in access.indices]
    used += [bound for loop in tir.nodes(stmt, tirx.For) for bound in (loop.min, loop.extent)]
    variables = tir.variables(used)
    for bind in reversed(binds):
        if bind.var in variables:
            for var in tir.variables(bind.value).keys():
                variables[var] = True
    return variables
