"""Float16 and bfloat16 arithmetic of a step, done in float32.

A half is what memory holds; a carry that is rounded to a half at every step loses the recurrence
after a few hundred of them. Registers of halves are float32, and the arithmetic on them is
lifted with them: a cast to half inside the step is left out, the store to memory rounds once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.statements import Alloc, Condition, Let, Loop, Store

_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
_COMPARE = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_LOGIC = (tirx.And, tirx.Or)


def widen(expr: Any, on_load: Callable[[TensorLoad], Any], names: tir.VarMap | None = None) -> Any:
    """``expr`` with loads mapped by ``on_load`` and half arithmetic done in float32.

    Parameters
    ----------
    expr : Expr
        With halves in it.
    on_load : callable
        From a load to what stands for it.
    names : VarMap, optional
        Bound variables, and the values that stand for them.
    """

    def wide(part: Any) -> Any:
        return widen(part, on_load, names)

    if isinstance(expr, TensorLoad):
        indices = [wide(index) for index in expr.indices]
        return _wide(on_load(tirx.BufferLoad(expr.source, indices)))
    if isinstance(expr, Var):
        return _wide(names.get(expr, expr) if names else expr)
    if isinstance(expr, tirx.FloatImm):
        half = tir.is_half(tir.dtype_of(expr))
        return tirx.FloatImm("float32", float(expr.value)) if half else expr
    if isinstance(expr, tirx.Cast):
        value = wide(expr.value)
        wanted = tir.wide_dtype(tir.dtype_of(expr))
        return value if tir.dtype_of(value) == wanted else tirx.Cast(wanted, value)
    if isinstance(expr, _BINARY + _COMPARE + _LOGIC):
        return type(expr)(wide(expr.a), wide(expr.b))
    if isinstance(expr, tirx.Not):
        return tirx.Not(wide(expr.a))
    if isinstance(expr, tirx.Select):
        parts = (expr.condition, expr.true_value, expr.false_value)
        return tirx.Select(*(wide(part) for part in parts))
    if isinstance(expr, Call):
        args = [wide(arg) for arg in expr.args]
        if tir.call_name(expr) == "prim.if_then_else":
            return tirx.op.if_then_else(*args)
        kind = tir.prim_type(tir.wide_dtype(tir.dtype_of(expr)))
        return Call(expr.op, args, expr.attrs, expr.ty_args, ret_ty=kind)
    return tir.substitute(tir.map_loads(expr, on_load), names or {})


def with_wide_stores(stmts: list[Any], wide: tir.VarMap, names: tir.VarMap) -> list[Any]:
    """A flattened step with buffers of float32 in place of written ones of halves.

    Parameters
    ----------
    stmts : list
        Flattened statements.
    wide : VarMap
        For each such buffer the one of float32.
    names : VarMap
        Bound variables of halves, and those of float32 that stand for them; is filled.
    """

    def on_load(load: TensorLoad) -> Any:
        return tirx.BufferLoad(wide.get(load.source, load.source), list(load.indices))

    def run(expr: Any) -> Any:
        return widen(expr, on_load, names)

    out: list[Any] = []
    for s in stmts:
        if isinstance(s, Store):
            value = run(s.value)
            stored = wide.get(s.buffer, s.buffer)
            out.append(Store(stored, [run(i) for i in s.indices], value, s.origin))
        elif isinstance(s, Let):
            value = run(s.value)
            if tir.is_half(tir.dtype_of(s.var)):
                names[s.var] = Var(s.var.name, value.ty)
            out.append(Let(names.get(s.var, s.var), value, s.origin))
        elif isinstance(s, Condition):
            then, orelse = (with_wide_stores(part, wide, names) for part in (s.then, s.orelse))
            out.append(Condition(run(s.cond), then, orelse, s.origin))
        elif isinstance(s, Loop):
            body = with_wide_stores(s.body, wide, names)
            out.append(Loop(s.var, s.extent, body, s.origin, s.thread))
        elif isinstance(s, Alloc):
            out.append(Alloc(wide.get(s.buffer, s.buffer)))
        else:
            out.append(s)
    return out


def _wide(expr: Any) -> Any:
    return tirx.Cast("float32", expr) if tir.is_half(tir.dtype_of(expr)) else expr
