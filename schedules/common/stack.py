"""Memory of the buffers of a block on a CPU: registers, the stack, or one array of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.schedules.common.ir import Kernel, as_dtype, cell_count, like_register

#: Bytes of the smallest buffer that TVM does not put on the stack.
SLOT_BYTES = 1024
#: The dtype of a buffer of one line, which LLVM aligns to it.
_LINE_OF_CELLS = "float32x16"


def on_stack(kernel: Kernel, arrays: Sequence[Var] = ()) -> Kernel:
    """Move the local buffers of a block to where TVM's CPU code keeps them on the stack.

    TVM takes ``local`` buffers on a CPU from a pool by a call, at every entry of the block;
    small ``global`` ones with a constant size become stack slots, and registers. It aligns slots
    to 16 bytes only: vectors in them cross lines.

    So arrays that registers cannot hold go to the pool, which aligns to lines, and all of a dtype
    as one buffer. As buffers of their own they would begin at pages: rows of the same number had
    the same last 12 bits of their addresses, by which processors tell whether a load has to wait
    for a store before it. The states of a selective scan, its gates and its inputs waited for one
    another (1536 channels of 512 steps on a core of an Emerald Rapids: 9.0 instead of 5.5 ms).

    Parameters
    ----------
    kernel : Kernel
        The block.
    arrays : sequence of Var
        Those of its local buffers that registers cannot hold, of constant shapes.

    Returns
    -------
    Kernel
        The block with other buffers.
    """
    begins = tir.VarMap()
    cells: dict[str, int] = {}
    for array in arrays:
        dtype = tir.dtype_of(array)
        line = tir.LINE_BYTES // tir.byte_size(dtype)  # vectors of an array cross none
        begins[array] = begin = cells.get(dtype, 0)
        cells[dtype] = begin + -(-cell_count(array) // line) * line
    pooled = {dtype: _pooled(count, dtype) for dtype, count in cells.items()}
    table = tir.VarMap(
        (old, like_register(old.name, tir.shape_of(old), tir.dtype_of(old), "global"))
        for old in kernel.allocs
        if str(old.scope()) == "local" and old not in begins
    )

    def moved(buffer: Var, indices: list[Any]) -> tuple[Var, list[Any]] | None:
        if buffer not in begins:
            return None
        return pooled[tir.dtype_of(buffer)], [_cell(begins[buffer], buffer, indices)]

    body = tir.map_accesses(kernel.body, moved) if arrays else kernel.body
    rest = [table.get(old, old) for old in kernel.allocs if old not in begins]
    body = tir.substitute(body, table)
    return Kernel(kernel.name, kernel.reads, kernel.writes, body, [*rest, *pooled.values()])


def on_lines(kernel: Kernel, tasks: Any) -> Kernel:
    """Align what LLVM keeps on the stack of a block to lines, so that vectors cross none.

    Vectors for which there is no register go to the stack, at whatever address that begins, unless
    a slot of it is a whole line: the block gets one. Without it linear recurrences in tiles of 16
    rows take a Zen 4 up to 1.6 times as long, in every second process.

    Parameters
    ----------
    kernel : Kernel
        The block of a loop over cores.
    tasks : Expr or int
        Extent of that loop. One of a single task is none: there TVM might put another buffer in the
        slot, which its passes for vectors then refuse.

    Returns
    -------
    Kernel
        The block, with the slot beside its buffers; as it is where there is one task.
    """
    if tir.as_int(tasks) == 1:
        return kernel
    line = like_register("line", [1], _LINE_OF_CELLS, "global")
    # A slot that nothing touches LLVM would leave out; one that ends early TVM would give away.
    asked = tirx.Evaluate(tir.prefetch(tirx.BufferLoad(line, [tirx.IntImm("int32", 0)]), cache=1))
    body = tir.seq([asked, kernel.body, asked])
    return Kernel(kernel.name, kernel.reads, kernel.writes, body, [*kernel.allocs, line])


def _pooled(cells: int, dtype: str) -> Var:
    """Return a buffer that is too large for a slot of the stack."""
    least = SLOT_BYTES // tir.byte_size(dtype) + 1
    return like_register(f"arrays_{dtype}", [max(cells, least)], dtype, "global")


def _cell(begin: int, array: Var, indices: Sequence[Any]) -> Any:
    """Index in the buffer of all arrays; a ramp along an axis stays a ramp."""
    base: Any = tirx.IntImm("int64", begin)
    ramp, stride = None, 1
    for index, extent in zip(reversed(indices), reversed(tir.shape_of(array)), strict=True):
        if isinstance(index, tirx.Ramp):
            ramp, index = (int(index.stride) * stride, index.lanes), index.base
        base = base + as_dtype(index, "int64") * tirx.IntImm("int64", stride)
        stride *= int(extent)
    return base if ramp is None else tirx.Ramp(base, tirx.IntImm("int64", ramp[0]), ramp[1])
