"""Uses that a statement makes of the values that it loads."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir.expr import TensorLoad

from tvm_scan import tir


def as_used(part: Any, load: TensorLoad) -> Any:
    """The load; of a half its cast to float32, if it is used in no other way."""
    dtype = tir.dtype_of(load)
    cast = tirx.Cast(tir.wide_dtype(dtype), load) if tir.is_half(dtype) else load
    loads = sum(tir.structurally_equal(other, load) for other in tir.loads(part))
    casts = sum(tir.structurally_equal(other, cast) for other in tir.nodes(part, tirx.Cast))
    return cast if loads == casts else load
