"""Surgery on a schedule: one nest of the root block gives way to others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.tirx import ForKind, IterVar

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.extraction import root_nests
from tvm_scan.schedules.common.ir import whole
from tvm_scan.schedules.common.result import Built


@contextmanager
def silent(sch: Schedule) -> Iterator[None]:
    """Run stock primitives without leaving them in the trace."""
    before = len(sch.trace.insts) if sch.trace is not None else 0
    try:
        yield
    finally:
        if sch.trace is not None:
            while len(sch.trace.insts) > before:
                sch.trace.pop()


def blocks_in(stmt: Any) -> list[SBlock]:
    """Every block in ``stmt``."""
    blocks: list[SBlock] = []
    tvm_ffi.structural_walk(stmt, [(SBlock, lambda block: blocks.append(block))])
    return blocks


def root_sref(sref: Any) -> Any:
    """The root block's reference above ``sref``."""
    while sref.parent is not None:
        sref = sref.parent
    return sref


def splice(sch: Schedule, block: SBlock, nest: Any, built: Built) -> None:
    """Replace ``nest``, which contains ``block``, by the statements of ``built``.

    Block variables of the user's schedule that meant ``block`` mean the last new block.

    Parameters
    ----------
    sch : Schedule
        Its trace is not touched.
    block : SBlock
        A block of the nest.
    nest : Stmt
        A statement of the root block.
    built : Built
        What takes its place.
    """
    root = root_sref(sch.state.get_sref(block))
    old_root = root.stmt
    body = _replaced(old_root.body, nest, tir.seq(built.nests))
    used = tir.variables(body)
    allocs = [b for b in old_root.alloc_buffers if b in used] + [
        b for b in built.allocs if b in used
    ]
    new_root = tir.block_with(old_root, body=body, alloc_buffers=allocs)
    last = blocks_in(built.nests[-1])[0]
    with silent(sch):
        sch.state.replace(root, new_root, {old_root: new_root, block: last})
        refresh_flags(sch, root)


def _replaced(body: Any, old: Any, new: Any) -> Any:
    if body.same_as(old):
        return new
    assert isinstance(body, tirx.SeqStmt)
    return tir.seq([new if part.same_as(old) else part for part in body.seq])


def refresh_flags(sch: Schedule, root: Any) -> None:
    """Make TVM recompute the cached flags of a scope after a Python rewrite.

    ``ScheduleState.replace`` gives new blocks false flags, and only a stock primitive that
    rebuilds a scope recomputes them: a throw-away loop is blockized and dropped again.
    """
    block = root.stmt
    scratch = tirx.decl_buffer((1,), "int32", name="refresh")
    loop_var, axis_var = tirx.Var("u", "int32"), tirx.Var("vu", "int32")
    axis = IterVar(Range(0, 1), axis_var, IterVar.DataPar)
    region = tirx.BufferRegion(scratch, [Range.from_min_extent(axis_var, 1)])
    store = tirx.BufferStore(scratch, tirx.const(0, "int32"), [axis_var])
    dummy = SBlock([axis], [], [region], "tvm_scan_refresh", store)
    loop = tirx.For(loop_var, 0, 1, ForKind.SERIAL, SBlockRealize([loop_var], True, dummy))
    allocs = [*block.alloc_buffers, scratch]
    with_dummy = tir.block_with(block, body=tir.seq([block.body, loop]), alloc_buffers=allocs)
    sch.state.replace(root, with_dummy, {block: with_dummy})
    sch.blockize(sch.get_loops(sch.get_sblock("tvm_scan_refresh", _function_of(sch, root)))[-1])
    current = root.stmt
    clean = tir.block_with(current, body=block.body, alloc_buffers=list(block.alloc_buffers))
    sch.state.replace(root, clean, {current: clean})


def _function_of(sch: Schedule, root: Any) -> str:
    for name, func in sch.mod.functions_items():
        body = func.body if isinstance(func, tirx.PrimFunc) else None
        if isinstance(body, SBlockRealize) and body.block.same_as(root.stmt):
            return str(name.name_hint)
    return "main"


def ensure_blocks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func`` with a root block and a block around each top-level nest that has none.

    A function of plain loops has no block that a schedule could name.

    Parameters
    ----------
    func : PrimFunc
        A TensorIR function.

    Returns
    -------
    PrimFunc
        Structurally the same where blocks are already there.
    """
    body = func.body
    old_root = None
    if isinstance(body, SBlockRealize) and len(body.block.iter_vars) == 0:
        old_root, body = body.block, body.block.body
    parts = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    allocs = [p.buffer for p in parts if isinstance(p, tirx.AllocBuffer)]
    nests = [p for p in parts if not isinstance(p, tirx.AllocBuffer)]
    if old_root is not None and all(blocks_in(nest) for nest in nests):
        return func
    if any(isinstance(p, tirx.Bind | tirx.DeclBuffer | tirx.BufferStore) for p in nests):
        nests = [tir.seq(nests)]
    wrapped = [nest if blocks_in(nest) else _block(nest, i) for i, nest in enumerate(nests)]
    if old_root is None:
        root = SBlock([], [], [], "root", tir.seq(wrapped), None, allocs)
        return func.with_body(SBlockRealize([], True, root))
    allocs = [*old_root.alloc_buffers, *allocs]
    root = tir.block_with(old_root, body=tir.seq(wrapped), alloc_buffers=allocs)
    return func.with_body(SBlockRealize([], True, root))


def _block(nest: Any, number: int) -> Any:
    """A block around a nest of plain loops."""
    allocated = tir.buffers_allocated(nest)
    writes = [b for b in tir.buffers_stored(nest).keys() if b not in allocated]
    reads = [b for b in tir.buffers_loaded(nest).keys() if b not in allocated and b not in writes]
    block = SBlock(
        [],
        [whole(b) for b in reads],
        [whole(b) for b in writes],
        f"nest_{number}",
        nest,
    )
    return SBlockRealize([], True, block)


def nest_of(sch: Schedule, block: SBlock) -> tuple[tirx.PrimFunc, Any]:
    """Function and root statement that contain ``block``."""
    for _, func in sch.mod.functions_items():
        if not isinstance(func, tirx.PrimFunc):
            continue
        for nest in root_nests(func):
            if any(b.same_as(block) for b in blocks_in(nest)):
                return func, nest
    raise ScanError(
        f"parallel_scan: expected a block inside a loop nest of the root block, got "
        f"{block.name_hint}; name the block in the time loop"
    )
