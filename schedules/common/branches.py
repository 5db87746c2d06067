"""The check that code may stand in a vector loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.recurrence import Recurrence

#: Operations that a choice may guard against: a divisor of zero.
_GUARDED = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


def branches(stmt: Any) -> bool:
    """Return whether ``stmt`` chooses: TVM's vectoriser gets choices on scalars wrong.

    Such a loop is left to LLVM's own vectoriser.
    """
    parts = tir.nodes(stmt, tirx.IfThenElse, Call)
    return any(not isinstance(e, Call) or tir.call_name(e) == "prim.if_then_else" for e in parts)


def readable(recurrence: Recurrence) -> list[Var]:
    """Arrays that a step reads inside of their shapes, whatever its conditions say.

    Such an array may be read where the loop does not: what was read is not used there.
    """
    if not branches(recurrence.body):
        return []
    analyzer, least = Analyzer(), tir.zero_like
    loops = tir.nodes(recurrence.body, tirx.For)
    spans = [(axis.var, least(axis.var), axis.extent) for axis in recurrence.axes]
    for var, first, extent in [*spans, *((x.loop_var, x.min, x.extent) for x in loops)]:
        analyzer.bind(var, Range.from_min_extent(first, extent))

    def inside(load: TensorLoad) -> bool:
        return all(
            analyzer.can_prove(index >= least(index)) and analyzer.can_prove(index < extent)
            for index, extent in zip(load.indices, tir.shape_of(load.source), strict=True)
        )

    read = tir.VarMap()
    for load in tir.loads(recurrence.body):
        read[load.source] = bool(read.get(load.source, True)) and inside(load)
    return [buffer for buffer, always in read.items() if always]


def choices_as_selects(stmt: Any, registers: Iterable[Var]) -> Any:
    """``if_then_else`` as ``Select`` where both sides may be computed whatever the condition.

    Parameters
    ----------
    stmt : Stmt
        Code over registers and memory.
    registers : iterable of Var
        Buffers of the kernel, and others that may be read at any step.

    Returns
    -------
    Stmt
        A choice that keeps a read of memory or a division from happening stays as it is.
    """
    is_register = tir.VarMap((buffer, True) for buffer in registers)
    done = tir.ExprMap((load, True) for load in unconditional_loads(stmt))

    def always(value: Any) -> bool:
        for load in tir.loads(value):
            if load.source not in is_register and load not in done:
                return False
        return not any(_may_fail(division) for division in tir.nodes(value, *_GUARDED))

    def on_call(call: Call) -> Any:
        if tir.call_name(call) != "prim.if_then_else":
            return call
        condition, first, second = call.args
        if not (always(first) and always(second)):
            return call
        return tirx.Select(condition, first, second)

    return tvm_ffi.structural_map(stmt, (Call, on_call))


def _may_fail(division: Any) -> bool:
    """Return whether a division is of integers by what may be zero, as no extent of a lane is."""
    return not is_float(tir.dtype_of(division)) and not tir.as_int(division.b)


def unconditional_loads(stmt: Any) -> list[TensorLoad]:
    """Loads that the statement makes whatever its conditions are."""
    unconditional: list[TensorLoad] = []
    skip = tvm_ffi.WalkResult.SKIP

    def look(node: Any) -> None:
        tvm_ffi.structural_walk(
            node,
            [
                (TensorLoad, unconditional.append),
                (Call, on_call),
                (tirx.IfThenElse, lambda _: skip),
                (tirx.For, lambda _: skip),
                (tirx.Select, lambda _: skip),
            ],
            order="pre",
        )

    def on_call(call: Call) -> Any:
        if tir.call_name(call) != "prim.if_then_else":
            return None
        look(call.args[0])
        # What both sides read in any case is read in any case.
        other = tir.ExprMap((load, True) for load in unconditional_loads(call.args[2]))
        unconditional.extend(x for x in unconditional_loads(call.args[1]) if x in other)
        return skip

    look(stmt)
    return unconditional
