"""Calls of operators and functions in Relax."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import GlobalVar, IRModule, Op

__all__ = ["global_vars", "legalized"]


def legalized(call: relax.Call) -> tuple[relax.Call, IRModule] | None:
    """Give an operator as a call of TensorIR, and its module, if TVM has that for it."""
    legalize = call.op.get_attr("FLegalize")
    if legalize is None or not isinstance(call.ty, relax.TensorType):
        return None
    builder = relax.BlockBuilder()
    made = legalize(builder, call)
    if not isinstance(made, relax.Call) or made.op != Op.get("relax.call_tir"):
        return None
    return builder.normalize(made), builder.get()


def global_vars(mod: IRModule) -> list[GlobalVar]:
    """Functions that the Relax functions of a module name, each as often."""
    found: list[GlobalVar] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, GlobalVar):
            found.append(expr)

    for _, func in mod.functions_items():
        if isinstance(func, relax.Function):
            relax.analysis.post_order_visit(func, visit)
    return found
