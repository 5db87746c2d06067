"""Swapping two axes of an array, in tiles that vectors hold.

A row of the result takes one element each of many rows, which often are a page of memory apart
and evict each other from the cache. A tile of whole lines is read once and transposed there.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan.loops.writer import Loop

_TILE = 16


def transpose(outer: Expr, rows: Expr, columns: Expr, *, dtype: str, result: str) -> tirx.PrimFunc:
    """Build ``transpose(X, Y)``, from (outer, rows, columns) to (outer, columns, rows)."""
    blocks = rows // _TILE + 1
    with Loop() as loop:
        X = loop.array("X", (outer, rows, columns), dtype, result)
        Y = loop.array("Y", (outer, columns, rows), result)
        with loop.parallel(outer * blocks, "transpose") as r:
            tile = loop.cell("tile", result, _TILE * _TILE)
            o, first = r // blocks, r % blocks * _TILE
            with T.If(first + _TILE <= rows):
                with T.Then():
                    with loop.over(columns // _TILE, "c") as c:
                        with loop.over(_TILE, "i") as i, loop.over(_TILE, "v", T.vectorized) as v:
                            tile[i * _TILE + v] = X[o, first + i, c * _TILE + v]
                        with loop.over(_TILE, "i") as i, loop.over(_TILE, "v", T.vectorized) as v:
                            Y[o, c * _TILE + i, first + v] = tile[v * _TILE + i]
                    with loop.over(columns % _TILE, "c") as c, loop.over(_TILE, "v") as v:
                        Y[o, columns - 1 - c, first + v] = X[o, first + v, columns - 1 - c]
                with T.Else(), loop.over(rows % _TILE, "i") as i, loop.over(columns, "c") as c:
                    Y[o, c, first + i] = X[o, first + i, c]
    return loop.func
