"""Nests beside a recurrence, and refused ones, as independent points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.errors import RefusalError
from tvm_scan.extraction.accesses import private_in
from tvm_scan.extraction.assemble import buffers_outside
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.nest import lane_path
from tvm_scan.extraction.statements import stores_in
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules.common.ir import as_dtype, int_const


@dataclass(frozen=True, eq=False)
class Points:
    """A nest as code for one point of its outermost independent loops.

    Attributes
    ----------
    point : Var
        Row-major number of the point, over which ``code`` is written.
    total : Expr
        How many there are; 1 where all iterations depend on each other.
    code : Stmt
        What runs at a point.
    reads, writes : list of Var
        Buffers of ``code`` less those that it allocates.
    allocs : list of Var
        Buffers that live as long as a point runs.
    scratch : list of Var
        Buffers that every point overwrites before it reads them, and that are allocated outside of
        the nest: points that run at the same time need one each.
    """

    point: Var
    total: Any
    code: Any
    reads: list[Var]
    writes: list[Var]
    allocs: list[Var]
    scratch: list[Var]


def points_of(func: tirx.PrimFunc, nest: Any) -> Points:
    """Flatten a nest, and split it into independent points.

    Parameters
    ----------
    func : PrimFunc
        The function that the nest belongs to.
    nest : Stmt
        One of its nests; of bound loops the binding is dropped.

    Raises
    ------
    RefusalError
        If the nest has effects that another order could change, or views of other buffers.
    """
    tree = flatten(func, nest)
    if isinstance(tree, Refusal):
        raise RefusalError(tree.message(), tree)
    external = buffers_outside(func, nest)
    lanes, body, allocs = lane_path(tree.body, external)
    inner = tir.VarMap((b, True) for b in allocs)
    private = [private_in(lane.body, external) for lane in lanes]
    scratch = [
        b
        for b in tir.VarMap((store.buffer, True) for store in stores_in(tree.body)).keys()
        if b not in inner and any(b in buffers for buffers in private)
    ]
    index = "int64" if any(tir.dtype_of(l.extent) == "int64" for l in lanes) else "int32"
    total: Any = int_const(1, index)
    for lane in lanes:
        total = total * as_dtype(lane.extent, index)
    total = tir.simplify(total)
    point = tirx.Var("v_point", index)
    table, rest = tir.VarMap(), point
    for lane in reversed(lanes):
        extent = as_dtype(lane.extent, index)
        table[lane.var] = as_dtype(rest % extent, tir.dtype_of(lane.var))
        rest = rest // extent
    code = tir.fresh_copy(tir.substitute(body, table))
    reads = [b for b in tir.buffers_loaded(code).keys() if b not in inner]
    writes = [b for b in tir.buffers_stored(code).keys() if b not in inner]
    return Points(point, total, code, reads, writes, allocs, scratch)
