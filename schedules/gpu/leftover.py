"""Nests beside a recurrence on a GPU: bind their independent loops to threads."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.errors import RefusalError
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.nest import lane_path
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules.common.ir import Kernel, int_const, threads_over, when
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.machine.device import Device
from tvm_scan.schedules.machine.terms import in_terms_of
from tvm_scan.schedules.splice import blocks_in, splice

__all__ = ["bind_leftovers"]

_THREADS = 256


def bind_leftovers(sch: Schedule, device: Device) -> None:
    """Give every unbound nest of the function threads: a GPU runs nothing outside a kernel.

    A nest whose iterations all depend on each other is one lane, and runs in one thread.

    Parameters
    ----------
    sch : Schedule
        Changed in place, silently.
    device : Device
        Of a GPU.

    Raises
    ------
    RefusalError
        If a nest has effects that another order could change, or views of other buffers.
    """
    for block in [b[0] for n in root_nests(sch.mod["main"]) if (b := blocks_in(n))]:
        func = sch.mod["main"]
        nest = next(n for n in root_nests(func) if any(x.same_as(block) for x in blocks_in(n)))
        if not _is_bound(nest):
            splice(sch, block, nest, Built([in_terms_of(device, _bound(func, nest))], []))


def _is_bound(nest: Any) -> bool:
    bound: list[Any] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == ForKind.THREAD_BINDING:
            bound.append(loop)

    tvm_ffi.structural_walk(nest, [(tirx.For, visit)])
    return bool(bound)


def _bound(func: tirx.PrimFunc, nest: Any) -> Any:
    tree = flatten(func, nest)
    if isinstance(tree, Refusal):
        raise RefusalError(tree.message(), tree)
    external = tir.VarMap((param, True) for param in func.params)
    for other in root_nests(func):
        if not other.same_as(nest):
            for var in tir.variables(other).keys():
                external[var] = True
    lanes, body, allocs = lane_path(tree.body, external)
    total: Any = None
    for lane in lanes:
        total = lane.extent if total is None else total * lane.extent
    total = int_const(1, "int32") if total is None else tir.simplify(total)
    row = tirx.Var("v_point", tir.dtype_of(total))
    table, rest = tir.VarMap(), row
    for lane in reversed(lanes):
        table[lane.var] = rest % lane.extent
        rest = rest // lane.extent
    code = tir.fresh_copy(tir.substitute(body, table))
    inner = tir.VarMap((b, True) for b in allocs)
    reads = [b for b in tir.buffers_loaded(code).keys() if b not in inner]
    writes = [b for b in tir.buffers_stored(code).keys() if b not in inner]

    def kernel(inside: Any) -> Kernel:
        return Kernel("beside", reads, writes, when(inside, code), allocs)

    return threads_over(kernel, row, total, _THREADS)
