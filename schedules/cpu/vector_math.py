"""Exponentials and logarithms that stay in vectors on LLVM targets.

LLVM turns ``exp`` of a vector into one library call per cell. Inside vector loops over lanes,
float32 ``exp``, ``exp2``, ``log``, ``log1p``, ``sigmoid`` and ``tanh`` are replaced by
polynomials.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm

from tvm_scan import tir
from tvm_scan.algebra.literal import largest, one, zero
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.schedules.common.polynomials import (
    Pool,
    Values,
    exp,
    exp2,
    log,
    log1p,
    log1p_unit,
    sigmoid,
    tanh,
)
from tvm_scan.schedules.common.signs import never_positive

_REPLACED = {
    "tirx.exp": exp,
    "tirx.exp2": exp2,
    "tirx.log": log,
    "tirx.log1p": log1p,
    "tirx.sigmoid": sigmoid,
    "tirx.tanh": tanh,
}
#: Stands for log1p of a number in [0, 1] until its argument is a polynomial.
_UNIT = "tvm_scan_log1p_unit"


def with_vector_math(stmt: Any, pool: Pool, cell: Any, *, ldexp: bool = False) -> Any:
    """``stmt`` with float32 calls replaced by polynomials.

    Parameters
    ----------
    stmt : Stmt
        Code of a vector loop, without choices between statements.
    pool : Pool
        Registers for intermediate values.
    cell : Expr
        Cell of the vector loop.
    ldexp : bool
        Whether the target scales vectors by powers of two in one instruction.
    """

    def on_store(store: tirx.BufferStore) -> Any:
        let = Values(pool, cell, ldexp)

        def on_call(call: Call) -> Any:
            make = _REPLACED.get(tir.call_name(call) or "")
            if _is_unit(call):
                return let(log1p_unit(call.args[1], let))
            if make is None or tir.dtype_of(call) != "float32":
                return call
            return let(make(call.args[0], let))

        value = tvm_ffi.structural_map(store.value, [(Call, _named), (tirx.Cast, _flag)])
        value = tvm_ffi.structural_map(value, (Call, on_call))
        return tir.seq([*let.stores, tirx.BufferStore(store.buffer, value, store.indices)])

    def on_seq(node: tirx.SeqStmt) -> Any:
        return tir.seq(list(node.seq))

    return tvm_ffi.structural_map(stmt, [(tirx.BufferStore, on_store), (tirx.SeqStmt, on_seq)])


def _flag(cast: tirx.Cast) -> Any:
    """Return whether a number is NaN, as an integer: no infinity is above, as LLVM asks of vectors.

    TVM asks ``isnan`` of each cell of a vector by itself, and LLVM puts the answers together.
    """
    if tir.call_name(cast.value) != "tirx.isnan":
        return cast
    value, dtype = cast.value.args[0], tir.dtype_of(cast)
    return tirx.Select(value <= largest(tir.dtype_of(value)), zero(dtype), one(dtype))


def _named(call: Call) -> Any:
    """``log1p(exp(x))``, the tail of a softplus, by a name of its own where ``x <= 0``."""
    if tir.call_name(call) != "tirx.log1p" or tir.dtype_of(call) != "float32":
        return call
    inner = call.args[0]
    raised = isinstance(inner, Call) and tir.call_name(inner) in ("tirx.exp", "tirx.exp2")
    if not raised or not never_positive(inner.args[0]):
        return call
    return tirx.call_pure_extern("float32", _UNIT, inner)


def _is_unit(call: Call) -> bool:
    name = call.args[0] if tir.call_name(call) == "tirx.call_pure_extern" else None
    return isinstance(name, StringImm) and name.value == _UNIT


def has_transcendentals(recurrence: TimeLoop) -> bool:
    """Return whether a step calls a function that has a polynomial here."""
    return any(tir.call_name(call) in _REPLACED for call in tir.nodes(recurrence.step, Call))


def hoist_first_iteration(stmt: Any) -> Any:
    """``for n: (if n == 0: init); rest`` as ``init; for n: rest``, for constant extents.

    The init of a reduction block stands inside its loop; in a vector loop the condition would
    make TVM give up on vectors.
    """

    def on_for(loop: tirx.For) -> Any:
        extent = tir.as_int(loop.extent)
        if extent is None or extent < 1 or not isinstance(loop.body, tirx.SeqStmt):
            return loop
        first = loop.body.seq[0]
        if not isinstance(first, tirx.IfThenElse) or first.else_case is not None:
            return loop
        cond = first.condition
        if not (isinstance(cond, tirx.EQ) and cond.a.same_as(loop.loop_var)):
            return loop
        if tir.as_int(cond.b) != 0 or tir.as_int(loop.min) != 0:
            return loop
        zero = tir.VarMap([(loop.loop_var, loop.min)])
        init = tir.substitute(first.then_case, zero)
        return tir.seq([init, tir.loop_with(loop, tir.seq(list(loop.body.seq)[1:]))])

    return tvm_ffi.structural_map(stmt, (tirx.For, on_for))
