"""Read counts of the variables of a Relax function."""

from __future__ import annotations

from typing import Any

from tvm import relax

from tvm_scan.relax.calls import parts_of
from tvm_scan.tir import VarMap


def uses_in(body: relax.Expr) -> VarMap:
    """Count the reads of each variable.

    Parameters
    ----------
    body : relax.Expr
        Of a function.

    Returns
    -------
    VarMap
        From variable to int; one that is never read is missing.
    """
    uses = VarMap()
    for var in (var for part in parts_of(body) for var in _children(part)):
        uses[var] = uses.get(var, 0) + 1
    return uses


def _children(expr: Any) -> list[relax.Var]:
    """Variables that a binding's value, a tuple or a block's result reads, each as often."""
    if isinstance(expr, relax.Call):
        parts = list(expr.args)
    elif isinstance(expr, relax.Tuple):
        parts = list(expr.fields)
    elif isinstance(expr, relax.TupleGetItem):
        parts = [expr.tuple_value]
    elif isinstance(expr, relax.If):
        parts = [expr.cond]
    elif isinstance(expr, relax.SeqExpr):
        parts = [expr.body]
        parts += [b.value for block in expr.blocks for b in block.bindings]
    else:
        parts = []
    return [part for part in parts if isinstance(part, relax.Var)]
