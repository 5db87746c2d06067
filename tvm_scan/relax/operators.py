"""Cumulative operators of Relax as sequential loops, which ``ParallelizeScans`` then schedules.

``LegalizeScans`` stands before TVM's ``DispatchSortScan``, which would turn the operators into
code that is no recurrence any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_scan import loops, tir
from tvm_scan.library.arguments import make_extent
from tvm_scan.relax.calls import call_loop, parts_of, uses_in
from tvm_scan.relax.fuse.parameters import with_unit_axes

_OPERATORS = {"relax.cumsum": "add", "relax.cumprod": "mul"}
_NUMBERS = ("float", "bfloat", "int", "uint")


def emit_along_axis(
    builder: relax.BlockBuilder, make: Any, args: Sequence[relax.Expr], axis: int | None, name: str
) -> list[relax.Expr]:
    """Emit a call of a loop along one axis of arrays of one shape.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    make : callable
        Gives the loop for the extents ``(outer, inner, length)``, where a side of extent 1 is None;
        parameters beyond `args` are its outputs.
    args : sequence of relax.Expr
        The inputs, of one shape, each extent of which is known or symbolic.
    axis : int or None
        The axis of time, negative from the end; None is over all elements, and makes the
        results vectors.
    name : str
        Name of the function.

    Returns
    -------
    list of relax.Expr
        The outputs.

    Raises
    ------
    ValueError
        If the shape of an input is not known, or the axis is out of range.
    """
    shape = _extents(args[0], name)
    if axis is not None and shape and not -len(shape) <= axis < len(shape):
        raise ValueError(
            f"{name}: expected an axis from {-len(shape)} to {len(shape) - 1}, got {axis}; "
            "name an axis of the array"
        )
    full = [_product(shape)] if axis is None or not shape else shape
    at = 0 if axis is None or not shape else axis % len(shape)
    sides = (_product(full[:at]), full[at], _product(full[at + 1 :]))
    outer, length, inner = (
        make_extent(name, label, tir.as_int(side))
        for label, side in zip(("outer", "length", "inner"), sides, strict=True)
    )
    loop = make(
        None if tir.as_int(outer) == 1 else outer, None if tir.as_int(inner) == 1 else inner, length
    )
    array = [side for i, side in enumerate(sides) if i == 1 or tir.as_int(side) != 1]
    if (
        axis is not None
        and tir.as_int(length) != 1
        and tir.structurally_equal([e for e in shape if tir.as_int(e) != 1], array)
    ):
        loop = with_unit_axes(loop, [shape] * len(loop.params))
        return call_loop(builder, loop, args, name)
    inputs = [viewed(builder, arg, array) for arg in args]
    result = full if axis is None else shape
    return [viewed(builder, out, result) for out in call_loop(builder, loop, inputs, name)]


def _product(extents: Sequence[Any]) -> Any:
    total: Any = tirx.IntImm("int64", 1)
    for extent in extents:
        total = total * extent
    return tir.simplify(total)


def _extents(arg: relax.Expr, name: str) -> list[Any]:
    shape = arg.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise ValueError(
            f"{name}: expected an array whose extents are numbers or variables, got {arg.ty}; "
            "give its shape with relax.match_cast"
        )
    return list(shape.values)


def viewed(builder: relax.BlockBuilder, value: relax.Expr, shape: list[Any]) -> relax.Expr:
    """Emit the same memory in another shape."""
    if tir.structurally_equal(list(value.ty.shape.values), shape):
        return value
    kind = relax.TensorType(shape, value.ty.dtype)
    return builder.emit(
        relax.call_pure_packed("vm.builtin.reshape", value, relax.ShapeExpr(shape), ty_args=kind)
    )


def LegalizeScans() -> tvm.ir.transform.Pass:
    """Turn ``relax.cumsum`` and ``relax.cumprod`` into sequential loops of TensorIR.

    A ``flip`` before and after one of them becomes a scan from the end. Calls on arrays of
    unknown shape, or of a dtype without arithmetic (bool), are left to TVM, as is all else.

    Returns
    -------
    Pass
        A module pass; it must run before ``relax.backend.DispatchSortScan``.
    """

    @tvm.ir.transform.module_pass(opt_level=0, name="LegalizeScans")
    def run(mod: IRModule, _context: Any) -> IRModule:
        legalizer = None
        for name, func in mod.functions_items():
            if not isinstance(func, relax.Function) or not _has_operator(func):
                continue
            legalizer = legalizer or _Legalizer(mod)
            legalizer.prepare(func)
            legalizer.builder_.update_func(name, legalizer.visit_expr(func))
        return mod if legalizer is None else legalizer.builder_.finalize()

    return run


def _has_operator(func: relax.Function) -> bool:
    return any(tir.call_name(part) in _OPERATORS for part in parts_of(func))


def _axis(call: relax.Call) -> int | None:
    return None if call.attrs.axis is None else int(call.attrs.axis)


@mutator
class _Legalizer(PyExprMutator):
    """Rewrites one function; `prepare` finds the flips around its operators."""

    def prepare(self, func: relax.Function) -> None:
        values = relax.analysis.get_var2val(func)
        uses = uses_in(func.body)
        #: Outer flip -> (input, operator call); and what nobody reads once it is rewritten.
        self.reversals: dict[relax.Var, tuple[relax.Expr, relax.Call]] = {}
        self.dead: set[relax.Var] = set()
        self.reversal: tuple[relax.Expr, relax.Call] | None = None
        for var, value in values.items():
            scan_var = value.args[0] if tir.call_name(value) == "relax.flip" else None
            scan = values.get(scan_var) if isinstance(scan_var, relax.Var) else None
            if scan is None or not _can_legalize(scan):
                continue
            inner_var = scan.args[0]
            inner = values.get(inner_var) if isinstance(inner_var, relax.Var) else None
            if inner is None or tir.call_name(inner) != "relax.flip":
                continue
            axes = [a for call in (value, scan, inner) if (a := _axis(call)) is not None]
            if len(axes) != 3 or len({axis % len(scan.ty.shape) for axis in axes}) != 1:
                continue
            self.reversals[var] = (inner.args[0], scan)
            if uses[scan_var] == 1:
                self.dead.add(scan_var)
                if uses[inner_var] == 1:
                    self.dead.add(inner_var)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self.dead:
            return
        self.reversal = self.reversals.get(binding.var)
        super().visit_var_binding_(binding)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if self.reversal is not None:
            (source, scan), self.reversal = self.reversal, None
            return self._loop(scan, self.visit_expr(source), reverse=True)
        if not _can_legalize(call):
            return super().visit_call_(call)
        return self._loop(call, self.visit_expr(call.args[0]), reverse=False)

    def _loop(self, call: relax.Call, source: relax.Expr, reverse: bool) -> relax.Expr:
        op = _OPERATORS[tir.call_name(call) or ""]
        make = partial(
            loops.cumulative,
            op=op,
            source=str(source.ty.dtype),
            dtype=tir.dtype_of(call),
            exclusive=bool(call.attrs.exclusive),
            reverse=reverse,
        )
        name = "cumsum" if op == "add" else "cumprod"
        return emit_along_axis(self.builder_, make, [source], _axis(call), name)[0]


def _can_legalize(call: Any) -> bool:
    if tir.call_name(call) not in _OPERATORS:
        return False
    source = call.args[0]
    dtypes = (str(source.ty.dtype), tir.dtype_of(call))
    shaped = isinstance(source.ty.shape, relax.ShapeExpr)
    axis = _axis(call)
    if shaped and axis is not None and tir.as_int(source.ty.shape.values[axis]) == 1:
        return False  # no steps but one: what TVM makes of it is a copy
    return shaped and dtypes[1] != "bool" and all(d == "bool" or _is_number(d) for d in dtypes)


def _is_number(dtype: str) -> bool:
    return dtype.rstrip("0123456789") in _NUMBERS
