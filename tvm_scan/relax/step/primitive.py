"""A step of Relax operators as one function of TensorIR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.error import InternalError
from tvm.ir import GenericConst, GlobalVar, IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.relax.operators import LegalizeScans


@dataclass(frozen=True, eq=False)
class FusedStep:
    """A step as TensorIR, before anything is inlined.

    Attributes
    ----------
    func : tirx.PrimFunc
        Its parameters are what the step reads, then its results.
    reads : tuple of int
        Which parameter of the step each of them is; beyond the step's own they are its constants.
    constants : tuple of GenericConst
        Tensors that the step holds.
    """

    func: tirx.PrimFunc
    reads: tuple[int, ...]
    constants: tuple[GenericConst, ...]


def fused_step(mod: IRModule, step: GlobalVar) -> FusedStep:
    """Lower a primitive function of Relax operators, and fuse what becomes of it.

    Parameters
    ----------
    mod : IRModule
        With the function.
    step : GlobalVar
        Its name.

    Raises
    ------
    ScanError
        If TVM has no TensorIR for an operator.
    """
    mod = LegalizeScans()(mod)
    # A step cannot call the runtime for a view; TVM lowers a reshape.
    mod.update_func(step, _Views().visit_expr(mod[step]))
    mod = relax.transform.LegalizeOps()(mod)
    # TVM fuses a function only where it holds no tensors.
    lifter = _Constants()
    body = lifter.visit_expr(mod[step].body)
    params = [*mod[step].params, *(var for _, var in lifter.constants)]
    lifted = relax.Function(params, body, mod[step].ret_ty, mod[step].is_pure, mod[step].attrs)
    del mod[step]
    builder = relax.BlockBuilder(mod)
    step = builder.add_func(lifted, "step")
    outer = [relax.Var(f"p{i}", param.ty) for i, param in enumerate(params)]
    with builder.function("main", outer):
        with builder.dataflow():
            out = builder.emit_output(relax.Call(step, outer))
        builder.emit_func_output(out)
    mod = _fused(builder.get())
    call = mod["main"].body.blocks[0].bindings[0].value
    if tir.call_name(call) != "relax.call_tir":
        raise _wrong(mod.script())
    reads = tuple(int(str(arg.name).removeprefix("p")) for arg in call.args[1].fields)
    return FusedStep(mod[call.args[0]], reads, tuple(constant for constant, _ in lifter.constants))


def _fused(mod: IRModule) -> IRModule:
    try:
        return relax.transform.FuseTIR()(mod)
    except InternalError as error:
        # It stops at the first call that is none of TensorIR, and names it in its last line.
        raise _wrong(str(error).strip().splitlines()[-1]) from error


def _wrong(found: str) -> ScanError:
    return ScanError(
        "tvm_scan.relax: expected a step of operators that TVM lowers to TensorIR, got\n"
        f"{found}\nmove the other operators out of the loop"
    )


@mutator
class _Constants(PyExprMutator):
    def __init__(self) -> None:
        super().__init__()
        self.constants: list[tuple[GenericConst, relax.Var]] = []

    def visit_generic_const_(self, op: GenericConst) -> Any:
        if not isinstance(op.ty, relax.TensorType):
            return op
        for constant, var in self.constants:
            if constant.same_as(op):
                return var
        var = relax.Var(f"constant{len(self.constants)}", op.ty)
        self.constants.append((op, var))
        return var


@mutator
class _Views(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> Any:
        call = super().visit_call_(call)
        is_packed = tir.call_name(call) == "relax.call_pure_packed"
        if not is_packed or getattr(call.args[0], "global_symbol", "") != "vm.builtin.reshape":
            return call
        return relax.op.reshape(call.args[1], call.args[2])
