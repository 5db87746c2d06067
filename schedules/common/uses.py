"""Uses that a statement makes of the values that it loads."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from tvm_scan import tir


def as_used(part: Any, load: TensorLoad) -> Any:
    """The load; of a half its cast to float32, if it is used in no other way."""
    dtype = tir.dtype_of(load)
    cast = tirx.Cast(tir.wide_dtype(dtype), load) if tir.is_half(dtype) else load
    uses = {TensorLoad: 0, tirx.Cast: 0}

    def count(node: Any) -> None:
        wanted = load if isinstance(node, TensorLoad) else cast
        uses[TensorLoad if isinstance(node, TensorLoad) else tirx.Cast] += bool(
            tir.structurally_equal(node, wanted)
        )

    tvm_ffi.structural_walk(part, [(TensorLoad, count), (tirx.Cast, count)])
    return cast if uses[TensorLoad] == uses[tirx.Cast] else load
