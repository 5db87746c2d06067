"""Integers of a loop that do not fit 32 bits, for devices that have no others.

TVM narrows what is of 64 bits there without a look. An index is right all the same, since a buffer
has fewer than 2^31 elements and sums and products wrap; a value or a condition is not.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Range
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.delta_rule import TimeLoop

#: Extents that are not known are taken for this.
_LONGEST = (1 << 31) - (1 << 24)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


@lru_cache(maxsize=64)
def first_wide(recurrence: TimeLoop) -> Any | None:
    """Return the first integer of 64 bits in a step's values that may not fit 32; None for none.

    Parameters
    ----------
    recurrence : Recurrence or DeltaRule
        Extents that are symbolic are taken as less than 2^31.
    """
    analyzer, wide = Analyzer(), []

    def bind(var: Any, extent: int | None) -> None:
        size = tirx.IntImm(tir.dtype_of(var), _LONGEST if extent is None else max(1, extent))
        analyzer.bind(var, Range.from_min_extent(tir.zero_like(var), size))

    for axis in recurrence.axes:
        bind(axis.var, tir.as_int(axis.extent))
        for symbol in tir.variables(axis.extent).keys():
            bind(symbol, None)

    def check(*parts: Any) -> None:
        for part in parts:
            if tir.dtype_of(part) == "int64":
                bound = analyzer.const_int_bound(part)
                if not -(1 << 31) <= bound.min_value <= bound.max_value < 1 << 31:
                    wide.append(part)

    skip = tvm_ffi.WalkResult.SKIP
    rules: list[Any] = [
        (TensorLoad, lambda _: skip),
        (tirx.Cast, lambda cast: check(cast.value)),
        *((kind, lambda test: check(test.a, test.b)) for kind in _COMPARISONS),
    ]

    def values(expr: Any) -> None:
        tvm_ffi.structural_walk(expr, rules, order="pre")

    tvm_ffi.structural_walk(
        recurrence.step,
        [
            (tirx.For, lambda loop: bind(loop.loop_var, tir.as_int(loop.extent))),
            (tirx.BufferStore, lambda store: values(store.value)),
            (tirx.IfThenElse, lambda branch: values(branch.condition)),
            (tirx.Bind, lambda name: values(name.value)),
        ],
        order="pre",
    )
    return wide[0] if wide else None
