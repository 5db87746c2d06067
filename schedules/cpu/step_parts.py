"""A step in parts: what comes before the carries, the carries, and what comes after them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence, Register
from tvm_scan.schedules.common.invariants import register_of
from tvm_scan.schedules.common.ir import local
from tvm_scan.schedules.cpu.cost.count import count
from tvm_scan.schedules.cpu.vector_math import hoist_first_iteration


@dataclass(frozen=True, eq=False)
class StepParts:
    """Statements that may run for all steps of a tile, one part after the other.

    Attributes
    ----------
    bodies : tuple of Stmt
        The parts, in order; the whole step where it is one.
    registers : tuple of Register
        Values that one part hands to another, a cell for each step of a tile.
    """

    bodies: tuple[Any, ...]
    registers: tuple[Register, ...]


def step_parts(recurrence: Recurrence, body: Any, slot: Var, steps: int) -> StepParts:
    """Split a step where exponentials or divisions stand before or after the carries.

    Each of them is a long chain of instructions, and a processor begins the next step's only when
    little of this step is left: a softplus, 16 states and a SiLU took a quarter longer in one
    loop than in three.

    Parameters
    ----------
    recurrence : Recurrence
        Whose step it is.
    body : Stmt
        The step, which reads and writes local buffers where it can.
    slot : Var
        The step's number in its tile.
    steps : int
        Of a tile.
    """
    split = tir.seq([hoist_first_iteration(body)])
    stmts = list(split.seq) if isinstance(split, tirx.SeqStmt) else [split]
    values = _values_of_a_step(recurrence, stmts)
    apart = [_is_apart(stmt, recurrence, values, body) for stmt in stmts]
    if all(apart):
        return StepParts((body,), ())
    first, last = apart.index(False), len(stmts) - apart[::-1].index(False)
    first = first if _is_long(stmts[:first]) else 0
    last = last if _is_long(stmts[last:]) else len(stmts)
    parts = [part for part in (stmts[:first], stmts[first:last], stmts[last:]) if part]
    shared = [v for v in values.keys() if sum(tir.contains_var(p, [v]) for p in parts) > 1]
    table = tir.VarMap(
        (value, local(f"{value.name}_of_steps", [steps], tir.dtype_of(value))) for value in shared
    )

    def moved(buffer: Var, _: list[Any]) -> tuple[Var, list[Any]] | None:
        return (table[buffer], [slot]) if buffer in table else None

    bodies = tuple(tir.map_accesses(tir.seq(part), moved) for part in parts)
    return StepParts(bodies, tuple(register_of(new) for _, new in table.items()))


def _values_of_a_step(recurrence: Recurrence, stmts: list[Any]) -> tir.VarMap:
    """Registers of one cell that every step sets before it reads them, and that none keeps."""
    states = tir.VarMap((carry.state, True) for carry in recurrence.carries)
    values = tir.VarMap()
    for register in recurrence.registers:
        outlives = register.local in states or register.previous or register.visible
        if outlives or register.timed or prod(tir.shape_of(register.local)) != 1:
            continue
        if recurrence.finish is not None and tir.contains_var(recurrence.finish, [register.local]):
            continue
        begin = next((s for s in stmts if tir.contains_var(s, [register.local])), None)
        if not isinstance(begin, tirx.BufferStore) or not begin.buffer.same_as(register.local):
            continue
        if not tir.contains_var([begin.value, *begin.indices], [register.local]):
            values[register.local] = True
    return values


def _is_apart(stmt: Any, recurrence: Recurrence, values: tir.VarMap, body: Any) -> bool:
    """Return whether a statement reads inputs and values of its step, and sets values and tiles."""
    registers = tir.VarMap((b, True) for r in recurrence.registers for b in (r.local, *r.previous))
    changing = tir.buffers_stored(body)
    for buffer in (*recurrence.outputs, *(p for r in recurrence.registers for p in r.previous)):
        changing[buffer] = True
    if any(b in changing and b not in values for b in tir.buffers_loaded(stmt).keys()):
        return False
    return all(
        b in values or (str(b.scope()) == "local" and b not in registers)
        for b in tir.buffers_stored(stmt).keys()
    )


def _is_long(stmts: list[Any]) -> bool:
    counts = count(stmts)
    return counts.calls + counts.quotients > 0
