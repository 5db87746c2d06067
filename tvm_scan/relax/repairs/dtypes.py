"""Operators on dtypes that TVM 0.27 types and lowers, and then has no code for.

Its error comes from the code generator, behind every pass, and names no operator. So those that
mean something are rewritten before TVM sees them, and the others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.errors import ScanError
from tvm_scan.relax.calls import parts_of
from tvm_scan.relax.repairs.torch_casts import as_dtype

#: Of truth values, where TVM has arithmetic on words of one bit.
_LOGICAL: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "relax.add": relax.op.logical_or,
    "relax.maximum": relax.op.logical_or,
    "relax.multiply": relax.op.logical_and,
    "relax.minimum": relax.op.logical_and,
}
#: What a truth value is left by.
_IDENTITY_ON_BOOL = ("relax.square", "relax.nn.relu")
_COMPARISONS = "equal not_equal less less_equal greater greater_equal"
_FUNCTIONS = "acos acosh asin asinh atan atan2 atanh cosh sinh"
_SORTS = ("relax.sort", "relax.argsort", "relax.topk")
#: Operators on bool that are computed in integers, whose results are true where they are not 0.
_COUNTED = {
    **{
        f"relax.{name}": "int8"
        for name in f"{_COMPARISONS} max min argmax argmin prod clip".split()
    },
    **dict.fromkeys(("relax.sum", "relax.matmul", "relax.einsum"), "int64"),
    **dict.fromkeys(_SORTS, "int32"),
}
#: Integers that TVM does not sort, and those of the same values and order that it does.
_SORTED = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), "int32"),
    "uint32": "int64",
}
#: Operators that TVM types for bool, though they mean nothing there.
_NOT_OF_BOOL = (
    "relax.subtract",
    "relax.divide",
    "relax.floor_divide",
    "relax.floor_mod",
    "relax.mod",
)


def RepairOperators() -> tvm.ir.transform.Pass:
    """Rewrite operators that TVM lowers and then has no code for.

    Sums, products and extrema of bool become logical operators; comparisons, reductions, sorts
    and products of matrices of bool are computed in integers, functions of half precision in
    float32, and narrow integers are sorted in wider ones. An operator without a meaning for its
    dtype is named in a ``ScanError``.

    Returns
    -------
    Pass
        A module pass, to run before operators are legalised.
    """

    @tvm.ir.transform.module_pass(opt_level=0, name="RepairOperators")
    def run(mod: IRModule, _context: Any) -> IRModule:
        repairer = None
        for name, func in mod.functions_items():
            if not isinstance(func, relax.Function) or not any(map(_is_concerned, parts_of(func))):
                continue
            repairer = repairer or _Repairer(mod)
            repairer.builder_.update_func(name, repairer.visit_expr(func))
        return mod if repairer is None else repairer.builder_.finalize()

    return run


def _is_concerned(expr: Any) -> bool:
    name, dtype = _about(expr)
    if dtype == "bool" and name in (*_LOGICAL, *_IDENTITY_ON_BOOL, *_CUMULATIVE):
        return True
    return _wider(name, dtype) is not None or _is_refused(name, dtype)


def _about(expr: Any) -> tuple[str, str]:
    """Name and dtype of the operands of a call of an operator; empty for all else."""
    name = tir.call_name(expr)
    if name is None:
        return "", ""
    dtypes = {str(arg.ty.dtype) for arg in _operands(expr)}
    return name, dtypes.pop() if len(dtypes) == 1 else ""


def _operands(call: relax.Call) -> list[relax.Expr]:
    """Tensors that a call reads."""
    flat: list[relax.Expr] = []
    for arg in call.args:
        flat += list(arg.fields) if isinstance(arg, relax.Tuple) else [arg]
    return [arg for arg in flat if isinstance(arg.ty, relax.TensorType)]


def _wider(name: str, dtype: str) -> str | None:
    """Dtype in which an operator has code, where it has none in its own."""
    if dtype == "bool":
        return _COUNTED.get(name)
    if dtype == "float16" and name.removeprefix("relax.") in _FUNCTIONS.split():
        return "float32"
    if dtype == "bfloat16" and name in ("relax.mod", "relax.argmax", "relax.argmin"):
        return "float32"
    return _SORTED.get(dtype) if name in _SORTS else None


def _is_refused(name: str, dtype: str) -> bool:
    if name == "relax.atan2":
        return bool(dtype) and not is_float(dtype)
    if dtype == "uint64" and name in (*_SORTS, "relax.std"):
        return True
    return dtype == "bool" and name in _NOT_OF_BOOL


@mutator
class _Repairer(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        name, dtype = _about(call)
        call = super().visit_call_(call)
        if not dtype:
            return call
        if _is_refused(name, dtype):
            operands = ", ".join(str(arg.ty) for arg in _operands(call))
            raise ScanError(
                "get_pipeline: expected operators that TVM lowers, got\n"
                f"  {name}({operands}): TVM has no code for it on {dtype}\n"
                "replace these in the model, or cast what they read with relax.op.astype"
            )
        if dtype == "bool" and name in _LOGICAL:
            return _LOGICAL[name](*call.args)
        if dtype == "bool" and name in _IDENTITY_ON_BOOL:
            return call.args[0]
        if dtype == "bool" and name in _CUMULATIVE and tir.dtype_of(call) == "bool":
            return _CUMULATIVE[name](self.builder_, call)
        wider = _wider(name, dtype)
        return call if wider is None else self._computed_in(call, wider)

    def _computed_in(self, call: relax.Call, wider: str) -> relax.Expr:
        """The call on operands of another dtype, its results in their own."""

        def cast(arg: relax.Expr) -> relax.Expr:
            if isinstance(arg, relax.Tuple):
                return relax.Tuple([cast(field) for field in arg.fields])
            is_tensor = isinstance(arg.ty, relax.TensorType)
            return as_dtype(self.builder_, arg, wider) if is_tensor else arg

        operands = [cast(arg) for arg in call.args]
        if call.op.name == "relax.matmul":  # it may name the dtype of its result
            computed = relax.op.matmul(*operands)
        else:
            computed = relax.Call(call.op, operands, call.attrs)
        computed = self.builder_.emit(computed)
        if not isinstance(call.ty, relax.TupleType):
            return as_dtype(self.builder_, computed, tir.dtype_of(call))
        parts = [
            self.builder_.emit(relax.TupleGetItem(computed, i)) for i in range(len(call.ty.fields))
        ]
        pairs = zip(parts, call.ty.fields, strict=True)
        return relax.Tuple([as_dtype(self.builder_, p, str(field.dtype)) for p, field in pairs])


def _all_so_far(builder: relax.BlockBuilder, call: relax.Call, x: relax.Expr) -> relax.Expr:
    """A cumulative product, whose words of 8 bits are 0 or 1."""
    narrow = builder.emit(relax.op.astype(x, "int8"))
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    exclusive = bool(call.attrs.exclusive)
    products = builder.emit(relax.op.cumprod(narrow, axis, "int8", exclusive))
    return relax.op.astype(products, "bool")


def _any_so_far(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Not (none so far): a sum would wrap."""
    none = builder.emit(relax.op.logical_not(call.args[0]))
    return relax.op.logical_not(builder.emit(_all_so_far(builder, call, none)))


_CUMULATIVE: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    "relax.cumsum": _any_so_far,
    "relax.cumprod": lambda builder, call: _all_so_far(builder, call, call.args[0]),
}
