"""Swapping two axes of an array, in tiles that vectors hold.

A row of the result takes one element each of many rows, which often are a page of memory apart
and evict each other from the cache. A tile of whole lines is read once and turned there.
"""

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr

from .frame import ATTRS, cast

__all__ = ["turn"]

_TILE = 16


def turn(outer: Expr, rows: Expr, columns: Expr, *, dtype: str, result: str) -> tirx.PrimFunc:
    """Build ``turn(X, Y)`` from (outer, rows, columns) to (outer, columns, rows), and convert."""
    no, nr, nc = outer, rows, columns

    def at(block: Expr) -> tuple[Expr, Expr]:
        return block // (nr // _TILE + 1), block % (nr // _TILE + 1) * _TILE

    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((no, nr, nc), dtype), Y: T.Buffer((no, nc, nr), result)) -> None:
        T.func_attr(ATTRS)
        for r in T.parallel(no * (nr // _TILE + 1)):
            with T.sblock("turn"):
                vr = T.axis.spatial(no * (nr // _TILE + 1), r)
                tile = T.sblock_alloc_buffer((_TILE * _TILE,), result)
                o = T.meta_var(at(vr)[0])
                first = T.meta_var(at(vr)[1])
                if first + _TILE <= nr:
                    for c in range(nc // _TILE):
                        for i in range(_TILE):
                            for v in T.vectorized(_TILE):
                                tile[i * _TILE + v] = cast(
                                    X[o, first + i, c * _TILE + v], dtype, result
                                )
                        for i in range(_TILE):
                            for v in T.vectorized(_TILE):
                                Y[o, c * _TILE + i, first + v] = tile[v * _TILE + i]
                    for c in range(nc % _TILE):
                        for v in range(_TILE):
                            Y[o, nc - 1 - c, first + v] = cast(
                                X[o, first + v, nc - 1 - c], dtype, result
                            )
                else:
                    for i in range(nr % _TILE):
                        for c in range(nc):
                            Y[o, c, first + i] = cast(X[o, first + i, c], dtype, result)

    return main
