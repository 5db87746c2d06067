"""The operators of a module that TVM 0.27 cannot lower: its own errors name none."""

from __future__ import annotations

from tvm import relax
from tvm.ir import IRModule

from tvm_scan import tir
from tvm_scan.relax.calls import parts_of
from tvm_scan.relax.operators import LegalizeScans


def unlowered(mod: IRModule) -> list[str]:
    """Try every operator of a module alone.

    Parameters
    ----------
    mod : IRModule
        A module that TVM failed to lower.

    Returns
    -------
    list of str
        Each operator that fails, with its operands and what TVM says of it.
    """
    functions = [func for _, func in mod.functions_items() if isinstance(func, relax.Function)]
    operators: dict[str, None] = {}
    for call in (part for func in functions for part in parts_of(func)):
        name = tir.call_name(call)
        if name is not None and (said := _complaint(call)) is not None:
            operands = ", ".join(str(arg.ty) for arg in call.args if hasattr(arg, "ty"))
            operators[f"{name}({operands}): {said}"] = None
    return list(operators)


def _complaint(call: relax.Call) -> str | None:
    """TVM's complaint about a call alone; None where it lowers."""
    params = list(relax.analysis.free_vars(call))
    builder = relax.BlockBuilder()
    try:
        with builder.function("main", params):
            with builder.dataflow():
                result = builder.emit_output(builder.emit(call))
            builder.emit_func_output(result)
        relax.transform.LegalizeOps()(LegalizeScans()(builder.get()))
    except Exception as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[-1]
    return None
