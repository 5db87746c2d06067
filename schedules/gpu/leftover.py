"""Nests beside a recurrence on a GPU: bind their independent loops to threads."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_scan.extraction import root_nests
from tvm_scan.extraction.threads import is_bound
from tvm_scan.schedules.common.beside import points_of
from tvm_scan.schedules.common.ir import Kernel, threads_over, when
from tvm_scan.schedules.common.result import Built
from tvm_scan.schedules.machine.device import Device
from tvm_scan.schedules.machine.terms import in_terms_of
from tvm_scan.schedules.splice import blocks_in, splice

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
        if not is_bound(nest):
            splice(sch, block, nest, Built([in_terms_of(device, _bound(func, nest))], []))


def _bound(func: tirx.PrimFunc, nest: Any) -> Any:
    points = points_of(func, nest)

    def kernel(inside: Any) -> Kernel:
        code = when(inside, points.code)
        return Kernel("beside", points.reads, points.writes, code, points.allocs)

    return threads_over(kernel, points.point, points.total, _THREADS)
