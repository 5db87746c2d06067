"""Scratch memory of kernels on a GPU, as parameters that the caller allocates.

A plan in several launches keeps aggregates of tiles in global memory. TVM would take it from a
pool of its own, whose first allocation waits for the device and breaks the capture of a CUDA
graph; torch's allocator knows streams and captures. So what a function allocates becomes
parameters of it, and a function beside it says how large they are.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlockRealize

from tvm_scan import tir
from tvm_scan.torch.kernels.scratch import DTYPES, QUESTION


def with_scratch(func: tirx.PrimFunc, sizes: tuple[str, ...]) -> Any:
    """Make parameters of the global buffers of a scheduled function.

    Parameters
    ----------
    func : PrimFunc
        Its name is ``main``.
    sizes : tuple of str
        Names of the symbolic extents, in the order in which `shapes_of` is given them.

    Returns
    -------
    IRModule
        ``main``, with further parameters at its end, and the function that `shapes_of` asks.
    """
    realize = func.body
    root = realize.block
    lifted = [b for b in root.alloc_buffers if str(b.scope()) == "global"]
    local_buffers = [b for b in root.alloc_buffers if not any(b.same_as(o) for o in lifted)]
    block = tir.block_with(root, alloc_buffers=local_buffers)
    body = SBlockRealize(realize.iter_values, realize.predicate, block)
    main = tirx.PrimFunc([*func.params, *lifted], body, func.ret_type, attrs=func.attrs)
    return tvm.IRModule({"main": main, QUESTION: _question(lifted, sizes, func)})


def _question(buffers: list[Any], sizes: tuple[str, ...], func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``scratch(buffer, item, *sizes)``: item 0 is the rank, 1 the dtype, then the extents."""
    size_vars = {name: tirx.Var(name, "int64") for name in sizes}
    table = tir.VarMap()
    for param in func.params:
        extents = tir.shape_of(param) if tirx.is_buffer_var(param) else [param]
        for var in (v for extent in extents for v in tir.variables(extent).keys()):
            if str(var.name) in size_vars:
                table[var] = size_vars[str(var.name)]
    which, item = tirx.Var("which", "int64"), tirx.Var("item", "int64")
    answer: Any = tirx.IntImm("int64", 0)
    for position, buffer in enumerate(buffers):
        shape = tir.shape_of(buffer)
        facts = [len(shape), DTYPES.index(tir.dtype_of(buffer)), *shape]
        for number, fact in enumerate(facts):
            value = tirx.IntImm("int64", fact) if isinstance(fact, int) else fact
            asked = tirx.And(which.equal(position), item.equal(number))
            answer = tirx.Select(asked, tirx.Cast("int64", tir.substitute(value, table)), answer)
    params = [which, item, *size_vars.values()]
    return tirx.PrimFunc(params, tirx.Return(answer)).with_attrs(
        {"global_symbol": QUESTION, "tirx.is_scheduled": True}
    )
