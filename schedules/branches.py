"""Whether code may stand in a vector loop."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from tvm_scan import tir

__all__ = ["branches"]


def branches(stmt: Any) -> bool:
    """Whether ``stmt`` chooses: TVM's vectoriser gets choices on scalars wrong.

    Such a loop is left to LLVM's own vectoriser.
    """
    found: list[Any] = []

    def on_call(call: Call) -> None:
        if tir.call_name(call) == "prim.if_then_else":
            found.append(call)

    tvm_ffi.structural_walk(stmt, [(tirx.IfThenElse, found.append), (Call, on_call)])
    return bool(found)
