"""GELU as a PrimFunc: the elementwise control of the ablation."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.schedules.common.ir import Kernel, int_const, local, loop
from tvm_scan.schedules.common.lanes import clear
from tvm_scan.schedules.common.polynomials import Pool
from tvm_scan.schedules.common.stack import on_stack
from tvm_scan.schedules.cpu.line_stores import line_store, with_line_stores
from tvm_scan.schedules.cpu.vector_math import with_vector_math

__all__ = ["gelu", "gelu_of"]


def gelu_of(x: np.ndarray) -> np.ndarray:
    """The same in float64."""
    wide = x.astype("float64")
    return wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))


_WIDTH = 16
_BLOCK = 1 << 12


def gelu(cells: int, *, vectors: bool, nontemporal: bool = False) -> Any:
    """``y = x/2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))``, float32.

    Parameters
    ----------
    cells : int
        A multiple of 4096.
    vectors : bool
        Vectors over cores, with the hyperbolic tangent as a polynomial; else one plain loop.
    nontemporal : bool
        Whether the vectors are stored past the caches.
    """
    x, y = (tirx.decl_buffer((cells,), "float32", name, layout=None) for name in "XY")
    row, pool = tirx.Var("v_row", "int32"), Pool(_WIDTH)
    line = local("line", [_WIDTH], "float32")

    def value(place: Any) -> Any:
        v = tirx.BufferLoad(x, [place])
        inner = tirx.FloatImm("float32", 0.7978845608) * (
            v + tirx.FloatImm("float32", 0.044715) * v * v * v
        )
        return v * tirx.FloatImm("float32", 0.5) * (tirx.FloatImm("float32", 1) + tirx.tanh(inner))

    def vector(n: Any) -> Any:
        first = row * _BLOCK + n * _WIDTH

        def lane(u: Any) -> Any:
            target, place = (line, u) if nontemporal else (y, first + u)
            store = tirx.BufferStore(target, value(first + u), [place])
            return with_vector_math(store, pool, u)

        body = loop("u", _WIDTH, lane, ForKind.VECTORIZED)
        if not nontemporal:
            return body
        held = tirx.BufferLoad(line, [tirx.Ramp(tirx.IntImm("int32", 0), 1, _WIDTH)])
        return tir.seq([body, line_store(y, [first], held)])

    def scalar(i: Any) -> Any:
        place = row * _BLOCK + i
        return tirx.BufferStore(y, value(place), [place])

    if vectors:
        body = loop("n", _BLOCK // _WIDTH, vector)
        body = tir.seq([clear([*pool.buffers, line]), body])
    else:
        body = loop("i", _BLOCK, scalar)
    buffers = [*pool.buffers, line] if vectors else []
    kernel = on_stack(Kernel("gelu", [x], [y], body, buffers))
    rows = int_const(cells // _BLOCK, "int32")
    kind = ForKind.PARALLEL if vectors else ForKind.SERIAL
    nest = loop("row", rows, lambda r: kernel.block([(row, rows, r)]), kind)
    nest = with_line_stores(nest, ["float32"] if nontemporal else [])
    root = SBlockRealize([], True, SBlock([], [], [], "root", nest))
    func = tirx.PrimFunc([x, y], root)
    return func.with_attrs({"global_symbol": "gelu", "s_tir": True, "tirx.noalias": True})
