"""One carry: its step out of the executed body, and the proof that it is in a family."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra import Algebra, classify
from tvm_scan.extraction.access import Layouts, store_of
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.boundary import Boundary, decide_time_tests, split_boundary
from tvm_scan.extraction.cells import Cell
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.symbolic import StepState
from tvm_scan.recurrence import Axis, Carry, Refusal, RefusalKind

__all__ = ["build_carry", "prove_step"]


def build_carry(
    cell: Cell, cells: list[Cell], nest: Nest, layouts: Layouts, state: StepState
) -> tuple[Carry, Boundary] | Refusal:
    """The step of a carried cell, and what it starts from.

    Parameters
    ----------
    cell : Cell
        The cell.
    cells : list of Cell
        All carried cells; the step may depend on no other.
    nest : Nest
        The nest.
    layouts : Layouts
        Its boxes and registers.
    state : StepState
        The executed body.

    Returns
    -------
    tuple of (Carry, Boundary) or Refusal
    """
    slot = cell.slot
    step = state.values.get(slot)
    origin = state.origins.get(slot) or store_of(cell.buffer, nest)
    name = cell.buffer.name
    if step is None:
        return Refusal(
            RefusalKind.UNSUPPORTED_BODY,
            origin,
            f"expected the cell of {name} that a step reads to be written by the same index, "
            f"found no such store",
            "write the state at the index at which the next step reads it",
        )
    step = cell.own(step)
    others = tir.VarMap((name, True) for c in cells if c is not cell for name in c.names)
    opaque = tir.VarMap((var, True) for var in state.opaque.keys())
    if tir.contains_var(step, opaque.keys()):
        olds = tir.VarMap((name, True) for c in cells for name in c.names)
        unknown = [var for var in tir.variables(step).keys() if var in opaque]
        if any(state.depends_on(var, olds) for var in unknown):
            return Refusal(
                RefusalKind.COUPLED_CARRIES,
                origin,
                f"expected each cell of {name} to depend on itself alone, found a step that "
                "reads a sum over, or another cell of, the state",
                "only states whose cells advance independently are supported (diagonal "
                "transitions); a dense or delta-rule transition is not",
            )
        return Refusal(
            RefusalKind.UNSUPPORTED_BODY,
            origin,
            f"expected the step of {name} as an expression of inputs, found a value that an "
            "inner loop accumulates",
            "compute that value in a loop nest of its own, before the time loop",
        )
    if tir.contains_var(step, [cell.before]):
        return Refusal(
            RefusalKind.COUPLED_CARRIES,
            origin,
            f"expected each cell of {name} to depend on itself alone, found a step that reads "
            "another cell of the state",
            "only states whose cells advance independently are supported (diagonal transitions)",
        )
    if state.depends_on(step, others):
        return Refusal(
            RefusalKind.COUPLED_CARRIES,
            origin,
            f"expected the step of {name} to depend on no other carry, found "
            f"{_name_dependency(step, cells, cell)} in it",
            "carries that feed one another are not supported yet",
        )
    if _used_in(nest.before, cell.buffer) or _seen_at_first(cell, slot, nest, state):
        # Statements before time use it, or step 0 emits it: it is an initial state, whatever
        # the step itself makes of it at first.
        boundary = Boundary(step)
    else:
        boundary = split_boundary(step, cell.old, nest.time.var, nest.time.extent)
    register = layouts.registers[cell.buffer]
    axes, place = [], []
    for dim, key in enumerate(cell.key):
        if key == "s":
            var = state.cells.state(cell.buffer, dim)
            axes.append(Axis(var, register.extents[dim]))
            place.append(var)
        else:
            place.append(tirx.IntImm("int32", key))
    dtype = tir.wide_dtype(tir.dtype_of(cell.buffer))
    carry = Carry(
        register, tuple(place), tuple(axes), cell.old, boundary.step, boundary.first, dtype, origin
    )
    return carry, boundary


def _used_in(stmts: list[Any], buffer: Var) -> bool:
    return any(access.buffer.same_as(buffer) for access in accesses_of(stmts))


def _seen_at_first(cell: Cell, own: tuple[int, Any], nest: Nest, state: StepState) -> bool:
    """Whether step 0 stores the state before it anywhere but in the carry itself."""
    old = tir.VarMap((name, True) for name in cell.names)
    time = nest.time
    return any(
        state.depends_on(decide_time_tests(value, time.var, time.extent, first=True), old)
        for slot, value in state.values.items()
        if slot != own
    )


def _name_dependency(step: Any, cells: list[Cell], own: Cell) -> str:
    for cell in cells:
        if cell is not own and tir.contains_var(step, cell.names):
            return str(cell.buffer.name)
    return "another carry"


def prove_step(carry: Carry, boundary: Boundary) -> Algebra | Refusal:
    """The family of a carry's step, or a refusal at the part of it that is in none."""
    algebra = classify(boundary.step, carry.old, carry.dtype)
    if isinstance(algebra, Algebra):
        return algebra
    return Refusal(
        RefusalKind.UNSUPPORTED_STEP,
        _locate(algebra.expr, carry),
        f"expected a step of {carry.name} that is affine in it, or one of add, mul, max, min, "
        f"and, or, xor of it and an input; found {algebra.reason} in {algebra.expr}",
        "rewrite the step as a*h + b or as h op x with a, b and x free of the carry",
    )


def _locate(expr: Any, carry: Carry) -> Any:
    """The node of the user's own statement that looks like ``expr``."""
    store = carry.origin
    if not isinstance(store, tirx.BufferStore):
        return store
    found: list[Any] = []

    def visit(node: Any) -> None:
        if type(node) is type(expr) and tir.call_name(node) == tir.call_name(expr):
            reads = [load.source for load in tir.loads(node)]
            if any(source.same_as(carry.register.buffer) for source in reads):
                found.append(node)

    tvm_ffi.structural_walk(store.value, [(type(expr), visit)])
    return found[0] if found else store
