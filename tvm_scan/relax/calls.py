"""Calls of operators and functions in Relax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.ir import GlobalVar, IRModule

from tvm_scan import tir
from tvm_scan.errors import ScanError


def legalized(call: relax.Call) -> tuple[relax.Call, IRModule] | None:
    """Give an operator as a call of TensorIR, and its module, if TVM has that for it."""
    legalize = call.op.get_attr("FLegalize")
    if legalize is None or not isinstance(call.ty, relax.TensorType):
        return None
    builder = relax.BlockBuilder()
    legal = legalize(builder, call)
    if tir.call_name(legal) != "relax.call_tir":
        return None
    return builder.normalize(legal), builder.get()


def parts_of(expr: relax.Expr) -> list[Any]:
    """Every part of an expression or a function, each behind those that it is made of."""
    parts: list[Any] = []
    relax.analysis.post_order_visit(expr, lambda part: parts.append(part))
    return parts


def uses_in(body: relax.Expr) -> tir.VarMap:
    """Count the reads of each variable in the body of a function; one never read is missing."""
    uses = tir.VarMap()
    for part in parts_of(body):
        if isinstance(part, relax.Var):
            uses[part] = uses.get(part, 0) + 1
    return uses


def global_vars(mod: IRModule) -> list[GlobalVar]:
    """Functions that the Relax functions of a module name, each as often."""
    return [
        part
        for _, func in mod.functions_items()
        if isinstance(func, relax.Function)
        for part in parts_of(func)
        if isinstance(part, GlobalVar)
    ]


def constant_extent(value: relax.Expr, axis: int, operator: str, what: str) -> int:
    """Extent of a tensor along an axis that a loop is written out for, and so must know.

    Raises
    ------
    ScanError
        If the extent is symbolic.
    """
    extent = value.ty.shape.values[axis]
    known = tir.as_int(extent)
    if known is None:
        raise ScanError(
            f"{operator}: expected a constant number of {what}, got {extent}; export the model "
            "without a dynamic dimension there"
        )
    return known


def call_loop(
    builder: relax.BlockBuilder, loop: tirx.PrimFunc, args: Sequence[relax.Expr], name: str
) -> list[relax.Expr]:
    """Emit a call of a function whose parameters beyond `args` are its outputs.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    loop : tirx.PrimFunc
        Its symbolic extents follow from the inputs.
    args : sequence of relax.Expr
        The inputs.
    name : str
        Name of the function.

    Returns
    -------
    list of relax.Expr
        The outputs.

    Raises
    ------
    ValueError
        If the shape of an output does not follow from the inputs, or an input does not fit.
    """
    sizes = tir.VarMap()
    for arg, param in zip(args, loop.params, strict=False):
        extents, extents_of_arg = tir.shape_of(param), list(arg.ty.shape.values)
        if len(extents) != len(extents_of_arg) or str(arg.ty.dtype) != tir.dtype_of(param):
            raise ValueError(
                f"{name}: expected {param.name} as {tir.dtype_of(param)} of {len(extents)} "
                f"dimensions, got {arg.ty}; give the loop what it declares"
            )
        for extent, value in zip(extents, extents_of_arg, strict=True):
            if isinstance(extent, tirx.Var) and extent not in sizes:
                sizes[extent] = value
    types = []
    for param in loop.params[len(args) :]:
        shape = [tir.simplify(tir.substitute(extent, sizes)) for extent in tir.shape_of(param)]
        types.append(relax.TensorType(shape, tir.dtype_of(param)))
    function = builder.add_func(loop.without_attr("global_symbol"), name)
    call = builder.emit(relax.call_tir(function, list(args), types))
    if len(types) == 1:
        return [call]
    return [builder.emit(relax.TupleGetItem(call, i)) for i in range(len(types))]
