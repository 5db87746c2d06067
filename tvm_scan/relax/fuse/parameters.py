"""Functions of TensorIR on other parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var
from tvm.s_tir import SBlock, SBlockRealize
from tvm.s_tir.analysis import get_sblock_access_region

from tvm_scan import tir
from tvm_scan.schedules.splice import ensure_blocks


def rebuilt(
    scan: tirx.PrimFunc, params: Sequence[Var], body: Any, local: Sequence[Var]
) -> tirx.PrimFunc:
    """Put a body on other parameters, and work out again what its blocks access.

    Parameters
    ----------
    scan : tirx.PrimFunc
        Whose attributes are kept.
    params : sequence of Var
        The buffers that become parameters.
    body : SBlockRealize
        The root block over them.
    local : sequence of Var
        Buffers that the root block allocates beside its own.
    """
    root = body.block
    seen = tir.VarMap((buffer, buffer) for buffer in (*params, *local, *root.alloc_buffers))
    buffers = {buffer: buffer for buffer in seen.keys()}

    def on_block(block: SBlock) -> SBlock:
        reads, writes, _ = get_sblock_access_region(block, buffers)
        return tir.block_with(block, reads=reads, writes=writes)

    inner = tvm_ffi.structural_map(root.body, (SBlock, on_block))
    allocs = [*root.alloc_buffers, *local]
    whole = SBlock([], [], [], root.name_hint, inner, None, allocs)
    attrs = dict(scan.attrs or {})
    return tirx.PrimFunc(list(params), SBlockRealize([], True, whole)).with_attrs(attrs)


def with_unit_axes(func: tirx.PrimFunc, shapes: Sequence[Sequence[Any]]) -> tirx.PrimFunc:
    """Give parameters axes of extent 1, so that nobody has to reshape what is passed.

    Parameters
    ----------
    func : tirx.PrimFunc
        A function.
    shapes : sequence of sequence of Expr
        For each parameter its extents, with more of extent 1 between them.
    """
    buffers = tir.VarMap()
    for old, shape in zip(func.params, shapes, strict=True):
        extents = iter(tir.shape_of(old))
        full = [extent if tir.as_int(extent) == 1 else next(extents) for extent in shape]
        buffers[old] = tirx.decl_buffer(full, tir.dtype_of(old), name=str(old.name), layout=None)

    def moved(buffer: Var, indices: list[Any]) -> tuple[Var, list[Any]] | None:
        if buffer not in buffers:
            return None
        rest = iter(indices)
        full = tir.shape_of(buffers[buffer])
        return buffers[buffer], [
            tir.zero_like(e) if tir.as_int(e) == 1 else next(rest) for e in full
        ]

    func = ensure_blocks(func)
    body = tir.map_accesses(func.body, moved)
    return rebuilt(func, [b for _, b in buffers.items()], body, [])
