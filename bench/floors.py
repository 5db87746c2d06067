"""What memory allows: kernels that read and write the bytes of a workload and do nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm.script import from_source
from tvm.script import tirx as T

from tvm_scan.schedules.default import host_target
from tvm_scan.schedules.limits import limits_of
from tvm_scan.schedules.line_stores import line_store_ir

__all__ = ["floor_of"]

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


def floor_of(inputs: Sequence[np.ndarray], output: np.ndarray) -> Callable[[], Any] | None:
    """A call that reads the inputs and writes the output, past the caches where that is faster.

    Parameters
    ----------
    inputs : sequence of ndarray
        Those of the output's size in bytes count; smaller ones are left out.
    output : ndarray
        Its bytes are those of the floor's own buffers.

    Returns
    -------
    callable or None
        None for outputs that have no whole lines for every task.
    """
    target = host_target()
    limits = limits_of(target)
    cells, tasks = output.nbytes // 4, 8 * limits.cores
    streams = max(1, sum(x.nbytes == output.nbytes for x in inputs))
    if cells % (tasks * _LINE):
        return None
    lines = cells // tasks // _LINE
    place = f"(c * {lines} + i) * {_LINE}"
    value = " + ".join(f"X{j}[T.Ramp({place}, 1, {_LINE})]" for j in range(streams))
    past = limits.line_stores and output.nbytes >= limits.cache_bytes // 2
    through = f"Y[T.Ramp({place}, 1, {_LINE})] = {value}"
    call = f'T.call_extern("int32", "tvm_scan_store_float32", T.address_of(Y[{place}]), {value})'
    text = _KERNEL.format(
        inputs=", ".join(f'X{j}: T.Buffer(({cells},), "float32")' for j in range(streams)),
        cells=cells,
        pragma='T.attr("x", "pragma_import_llvm", IR)' if past else "pass",
        tasks=tasks,
        lines=lines,
        store=f"T.evaluate({call})" if past else through,
    )
    func = from_source(text, {"T": T, "IR": line_store_ir(["float32"])})
    run = tvm.compile(func, target=target)["floor"]
    arrays = [tvm.runtime.tensor(np.ones(cells, "float32")) for _ in range(streams + 1)]
    return lambda: run(*arrays)
