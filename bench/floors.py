"""What memory allows: kernels that read and write the bytes of a workload and do nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm.script import from_source
from tvm.script import tirx as T

from tvm_scan.arguments import host_target
from tvm_scan.schedules.cpu.line_stores import line_store_ir
from tvm_scan.schedules.machine.machine import Machine

__all__ = ["FLOORS", "floors_of", "least_floor"]

#: Stores of output lines: through the caches, or past them; either may be the faster one.
FLOORS = ("floor", "floor past the caches")

_LINE = 16
_KERNEL = """
@T.prim_func(s_tir=True)
def floor({inputs}, Y: T.Buffer(({cells},), "float32")):
    T.func_attr({{"global_symbol": "floor", "tirx.noalias": True}})
    {pragma}
    for c in T.parallel({tasks}):
        for i in range({lines}):
            {store}
"""


def floors_of(inputs: Sequence[np.ndarray], output: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Calls that read the inputs and write the output, with every kind of store there is.

    Parameters
    ----------
    inputs : sequence of ndarray
        Those of the output's size in bytes count; smaller ones are left out.
    output : ndarray
        Its bytes are those of the floors' own buffers.

    Returns
    -------
    dict of str to callable
        By the names in ``FLOORS``; empty for outputs that have no whole lines for every task.
    """
    target = host_target()
    machine = Machine.of(target)
    cells, tasks = output.nbytes // 4, 8 * machine.cores
    streams = max(1, sum(x.nbytes == output.nbytes for x in inputs))
    if cells % (tasks * _LINE):
        return {}
    arrays = [tvm.runtime.tensor(np.ones(cells, "float32")) for _ in range(streams + 1)]
    found = {}
    for name in FLOORS if machine.line_stores else FLOORS[:1]:
        text = _text(cells, tasks, streams, past=name == FLOORS[1])
        func = from_source(text, {"T": T, "IR": line_store_ir(["float32"])})
        run = tvm.compile(func, target=target)["floor"]
        found[name] = lambda run=run: run(*arrays)
    return found


def least_floor(seconds: Mapping[str, float], mine: float) -> float | None:
    """The faster of the floors; None where it is none, because a call took less."""
    known = [seconds[name] for name in FLOORS if name in seconds]
    return min(known) if known and min(known) <= mine else None


def _text(cells: int, tasks: int, streams: int, *, past: bool) -> str:
    lines = cells // tasks // _LINE
    place = f"(c * {lines} + i) * {_LINE}"
    value = " + ".join(f"X{j}[T.Ramp({place}, 1, {_LINE})]" for j in range(streams))
    through = f"Y[T.Ramp({place}, 1, {_LINE})] = {value}"
    call = f'T.call_extern("int32", "tvm_scan_store_float32", T.address_of(Y[{place}]), {value})'
    return _KERNEL.format(
        inputs=", ".join(f'X{j}: T.Buffer(({cells},), "float32")' for j in range(streams)),
        cells=cells,
        pragma='T.attr("x", "pragma_import_llvm", IR)' if past else "pass",
        tasks=tasks,
        lines=lines,
        store=f"T.evaluate({call})" if past else through,
    )
