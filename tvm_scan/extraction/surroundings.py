"""Statements around the time loop: what sets registers, what writes before and after."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.extents import last_of
from tvm_scan.extraction.layouts import Layouts
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.rewrite import BodyWriter
from tvm_scan.extraction.statements import keep_stores, rebuild, stores_in
from tvm_scan.recurrence import Carry, Refusal, RefusalKind


def surroundings(
    nest: Nest, layouts: Layouts, writer: BodyWriter, carries: list[Carry]
) -> tuple[Any, Any, Any, Any] | Refusal:
    """Prologue, start of the carries, boundary writes and finish."""
    first = tirx.IntImm(tir.dtype_of(nest.time.var), -1)
    last = last_of(nest.time.extent)
    before = writer.rewrite(nest.before, [], first)
    states = tir.VarMap((state, True) for c in carries for state in c.register.states)
    plain = keep_stores(before, lambda b: b not in states and b not in layouts.boxes)
    for access in accesses_of(plain):
        if not access.is_store and access.buffer in states:
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                nest.time.origin,
                "expected the statements before the time loop to set the state only, found one "
                "that reads it",
                "compute it in a loop nest of its own",
            )
    # A register that only a step sets is written back after time; a lane without steps must
    # write back what it found.
    zero = tir.zero_like(nest.time.var)
    extent = tir.as_int(nest.time.extent)
    stores = [
        tirx.IfThenElse(nest.time.extent <= zero, writer.copy_in(register, None), None)
        for register in writer.registers()
        if register.visible
        and not register.timed
        and register.states[0] not in states
        and (extent is None or extent < 1)
    ]
    after = writer.rewrite(nest.after, [], last)
    finish = [rebuild(after)] if after else []
    for register in writer.registers():
        if register.visible and not register.timed:
            finish.append(writer.copy_out(register, None))
    return (
        tir.seq([*stores, rebuild(plain)]) if stores or stores_in(plain) else None,
        _statement(keep_stores(before, lambda b: b in states)),
        _statement(keep_stores(before, lambda b: b in layouts.boxes)),
        tir.seq(finish) if finish else None,
    )


def _statement(stmts: list[Any]) -> Any:
    return rebuild(stmts) if stores_in(stmts) else None
