"""Nests that somebody bound to threads of a GPU, on a CPU: their independent loops over cores."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.threads import is_bound
from tvm_scan.schedules.common.beside import points_of
from tvm_scan.schedules.common.ir import Kernel, loop
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.common.stack import on_stack
from tvm_scan.schedules.machine.device import Device
from tvm_scan.schedules.machine.terms import in_terms_of
from tvm_scan.schedules.splice import blocks_in, splice

#: Most cells of the buffers that every point is given for itself.
_LARGEST = 1 << 16


def unbind_leftovers(sch: Schedule, device: Device) -> None:
    """Make ordinary loops of the bound loops of every nest of a function: a CPU has no threads.

    Points that are independent of each other are spread over the cores. Nests without bound loops
    stay as they are.

    Parameters
    ----------
    sch : Schedule
        Changed in place, silently.
    device : Device
        A CPU.

    Raises
    ------
    RefusalError
        If ordinary loops would not be the same program, see ``extraction.threads``.
    """
    for block in [b[0] for n in root_nests(sch.mod["main"]) if (b := blocks_in(n))]:
        func = sch.mod["main"]
        nest = next(n for n in root_nests(func) if any(x.same_as(block) for x in blocks_in(n)))
        if is_bound(nest):
            splice(sch, block, nest, Built([in_terms_of(device, _unbound(func, nest))], []))


def _unbound(func: tirx.PrimFunc, nest: Any) -> Any:
    points = points_of(func, nest)
    shapes = [[tir.as_int(extent) for extent in tir.shape_of(b)] for b in points.scratch]
    small = all(None not in shape for shape in shapes) and (
        sum(prod(n or 0 for n in shape) for shape in shapes) <= _LARGEST
    )
    # A buffer for all points is one that only points in succession may use.
    kind = ForKind.PARALLEL if small else ForKind.SERIAL
    allocs = [*points.allocs, *(points.scratch if small else [])]
    writes = [b for b in points.writes if not any(b.same_as(a) for a in allocs)]
    reads = [b for b in points.reads if not any(b.same_as(a) for a in allocs)]
    kernel = on_stack(Kernel("beside", reads, writes, points.code, allocs))

    def task(n: Any) -> Any:
        return kernel.block([(points.point, points.total, n)])

    return loop("point", points.total, task, kind, tir.dtype_of(points.total))
