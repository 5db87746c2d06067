"""Loop extents as numbers of iterations, which are never negative.

TensorIR runs a loop of a negative extent as one of no iterations. Whoever cuts an extent into
tiles, chunks or blocks needs it as a count, so every loop of a flattened nest has
``max(extent, 0)`` from the start, unless the extent is proven to be none or more.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Range, Var
from tvm.sym import Analyzer, ConstIntBound

from tvm_scan import tir


class Extents:
    """The extents of a function's loops as counts.

    Theorem. No dimension of a parameter is negative, because DLPack has no such tensors. An
    extent that is at least zero for all sizes that obey this is its own count.

    Parameters
    ----------
    func : PrimFunc
        The function that the loops belong to.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        self._analyzer = Analyzer()
        #: Dimensions that are not a bare variable.
        self._sizes: list[Any] = []
        for buffer in func.params:
            for size in tir.shape_of(buffer) if tirx.is_buffer_var(buffer) else ():
                if isinstance(size, Var):
                    bound = ConstIntBound(0, ConstIntBound.POS_INF)
                    self._analyzer.update(size, bound, override=True)
                elif tir.as_int(size) is None:
                    self._sizes.append(size)

    def count(self, extent: Any) -> Any:
        """Number of iterations of a loop of that extent."""
        known = tir.as_int(extent)
        if known is not None:
            return extent if known >= 0 else tir.zero_like(extent)
        zero = tir.zero_like(extent)
        for least in (zero, *self._sizes):
            if self._analyzer.can_prove(extent >= least):
                return extent
        return tirx.Max(extent, zero)

    def enter(self, var: Var, count: Any) -> None:
        """Let the extents inside a loop know the range of its variable."""
        self._analyzer.bind(var, Range.from_min_extent(tir.zero_like(var), count))


def last_of(count: Any) -> Any:
    """Index of the last iteration, where there is one: there ``max(e, 0) - 1 == e - 1``."""
    counted = isinstance(count, tirx.Max) and tir.as_int(count.b) == 0
    return (count.a if counted else count) - 1


def runs_through(count: Any, size: Any) -> bool:
    """Return whether a loop of ``count`` iterations visits each cell of a dimension of ``size``."""
    zero = tir.zero_like(size)
    return any(
        tir.structurally_equal(tir.simplify(count), tir.simplify(cells))
        for cells in (size, tirx.Max(size, zero))
    ) or (tir.as_int(count) == tir.as_int(size) is not None)
