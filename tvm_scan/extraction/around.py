"""What runs before and after the time loop: prologue, initial state, boundary writes, finish.

The statements before time are told apart by what they set. Registers that steps only read are set
by the prologue, which every chunk of time repeats; carries are set by the start, which runs
once per lane; memory is written by the boundary, which has one owner. The start repeats the
statements of the prologue in their place, so that the order between the two is the user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Range, Var
from tvm.ir.expr import TensorLoad
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.algebra import Algebra
from tvm_scan.extraction.access import Box, Layouts, check_injective
from tvm_scan.extraction.accesses import Access, accesses_of
from tvm_scan.extraction.boundary import Boundary
from tvm_scan.extraction.flatten import (
    Condition,
    Let,
    Loop,
    Store,
    keep_stores,
    rebuild,
    stores_in,
    stores_to,
)
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.rewrite import BodyWriter
from tvm_scan.extraction.symbolic import StepState
from tvm_scan.recurrence import Carry, Refusal, RefusalKind

__all__ = ["Around", "build_around"]


@dataclass(frozen=True, eq=False)
class Around:
    """The statements of a recurrence around its step."""

    prologue: Any
    start: Any
    boundary: Any
    finish: Any


def build_around(
    nest: Nest,
    layouts: Layouts,
    writer: BodyWriter,
    state: StepState,
    carries: list[tuple[Carry, Boundary, Algebra]],
) -> Around | Refusal:
    """Split what surrounds the time loop.

    Parameters
    ----------
    nest : Nest
        The nest.
    layouts : Layouts
        Its boxes and registers.
    writer : BodyWriter
        Rewrites statements over registers.
    state : StepState
        The executed body.
    carries : list of (Carry, Boundary, Algebra)
        What is carried.

    Returns
    -------
    Around or Refusal
    """
    carried = tir.VarMap((c.register.buffer, True) for c, _, _ in carries)
    refusal = _check_scratch(nest, layouts, writer, state, carried)
    if refusal is not None:
        return refusal
    first = tirx.IntImm(tir.dtype_of(nest.time.var), -1)
    before = writer.rewrite(nest.before, [], first)
    states = tir.VarMap((layouts.registers[b].state, True) for b in carried.keys())
    refusal = _check_order(before, states, nest, layouts)
    if refusal is not None:
        return refusal
    loaded: list[Any] = []
    for buffer in carried.keys():
        mine = [entry for entry in carries if entry[0].register.buffer.same_as(buffer)]
        found = _initial_load(mine, nest, layouts, writer)
        if isinstance(found, Refusal):
            return found
        loaded.append(found)
    plain = keep_stores(before, lambda b: b not in states and b not in layouts)
    sets = keep_stores(before, lambda b: b not in layouts) if _sets(before, states) else []
    memory = keep_stores(before, lambda b: b in layouts)
    overrides = [_override(entry, nest) for entry in carries]
    kept = _kept_without_steps(nest, writer, states)
    finish = [rebuild(writer.rewrite(nest.after, [], nest.time.extent - 1))]
    for register in writer.registers():
        if register.visible and not register.timed:
            finish.append(writer.copy_out(register, None))
    return Around(
        _sequence([*kept, _statement(plain)]),
        tir.seq([*loaded, _statement(sets), *overrides]),
        _statement(memory),
        _sequence(finish if stores_in(nest.after) else finish[1:]),
    )


def _statement(stmts: list[Any]) -> Any:
    return rebuild(stmts) if stores_in(stmts) else None


def _sequence(stmts: list[Any]) -> Any:
    present = [s for s in stmts if s is not None]
    return tir.seq(present) if present else None


def _sets(stmts: list[Any], wanted: tir.VarMap) -> bool:
    return any(store.buffer in wanted for store in stores_in(stmts))


# ---- initial state ------------------------------------------------------------------------------


def _initial_load(
    carries: list[tuple[Carry, Boundary, Algebra]],
    nest: Nest,
    layouts: Layouts,
    writer: BodyWriter,
) -> Any | Refusal:
    """Statement that fetches the state of one buffer from memory, where its start needs that."""
    carry = carries[0][0]
    register, buffer = carry.register, carry.register.buffer
    known = all(b.init is not None or b.first is not None for _, b, _ in carries)
    stored = stores_to(buffer, nest.before)
    if stored and register.timed:
        refusal = check_injective(buffer, layouts, ahead=1)
        if refusal is not None:
            return refusal
    if stored and _set_before_read(buffer, nest.before, layouts):
        return None
    if known and (register.timed or not register.visible):
        return None
    if known and _always_runs(nest) and _cells(carries) == prod(register.extents):
        return None
    if not register.visible and not stored:
        return Refusal(
            RefusalKind.NO_INITIAL_STATE,
            carry.origin,
            f"expected an initial state of {carry.name}, found none: it is local to the "
            "nest and nothing sets it before the first step",
            f"set {carry.name} before the time loop",
        )
    if not register.visible:
        return None
    if not register.timed:
        return writer.copy_in(register, None, previous=True)
    before = tirx.IntImm(tir.dtype_of(nest.time.var), -1)
    place = [tirx.IntImm("int32", 0)] * len(register.extents)
    index = writer.memory_index(register, place, before)
    box: Box = layouts.boxes[buffer]
    if not _in_bounds(index[box.time_dim], tir.shape_of(buffer)[box.time_dim], nest):
        return Refusal(
            RefusalKind.NO_INITIAL_STATE,
            carry.origin,
            f"expected an initial state of {carry.name} for step 0, found a read of "
            f"[{', '.join(str(i) for i in index)}], which is not provably inside the buffer",
            "guard the first step with T.if_then_else(t > 0, ..., initial value), or use a "
            "history buffer with one more cell",
        )
    return check_injective(buffer, layouts, ahead=1) or writer.copy_in(
        register, before, previous=True
    )


def _cells(carries: list[tuple[Carry, Boundary, Algebra]]) -> int:
    return sum(prod(int(axis.extent) for axis in c.state_axes) for c, _, _ in carries)


def _always_runs(nest: Nest) -> bool:
    return (tir.as_int(nest.time.extent) or 0) >= 1


def _in_bounds(index: Any, extent: Any, nest: Nest) -> bool:
    analyzer = Analyzer()
    for lane in nest.lanes:
        analyzer.bind(lane.var, Range.from_min_extent(tir.zero_like(lane.var), lane.extent))
    low = analyzer.can_prove(index >= tir.zero_like(index))
    return bool(low and analyzer.can_prove(index < extent))


def _override(entry: tuple[Carry, Boundary, Algebra], nest: Nest) -> Any:
    """Statement that sets the carry where step 0 knows its own start; None where it does not."""
    carry, boundary, algebra = entry
    if boundary.init is None and boundary.first is None:
        return None
    value = algebra.neutral() if boundary.init is None else boundary.init
    if tir.dtype_of(value) != carry.dtype:
        value = tirx.Cast(carry.dtype, value)
    stmt: Any = tirx.BufferStore(carry.register.state, value, list(carry.cell))
    for axis in reversed(carry.state_axes):
        zero, count = tirx.IntImm("int32", 0), tirx.IntImm("int32", axis.extent)
        stmt = tirx.For(axis.var, zero, count, tirx.ForKind.SERIAL, stmt)
    if carry.register.visible and not carry.register.timed and not _always_runs(nest):
        # Without a step the loop leaves the state as it found it.
        stmt = tirx.IfThenElse(nest.time.extent > tir.zero_like(nest.time.var), stmt, None)
    return tir.fresh_copy(stmt)


# ---- statements before time ---------------------------------------------------------------------


def _check_scratch(
    nest: Nest, layouts: Layouts, writer: BodyWriter, state: StepState, carried: tir.VarMap
) -> Refusal | None:
    """Registers that are no carry must be set in whole before anything reads them.

    A chunk in the middle of time starts with fresh registers; what is not set there would be lost,
    and what is written back to the user's buffer would be rubbish.
    """
    for buffer, box in layouts.boxes.items():
        if buffer in writer.direct or box.time_dim is not None:
            continue
        if buffer in carried:
            holds = state.covers(buffer) or buffer not in layouts.external
        elif box.stored_inside and not stores_to(buffer, nest.before):
            whole = state.covers(buffer)
            holds = whole or buffer not in layouts.external
        else:
            holds = _set_before_read(buffer, nest.before, layouts)
        if not holds:
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                _first_origin(buffer, nest),
                f"expected {buffer.name} to be set in whole before it is read, found cells that "
                "keep what they had",
                f"set all of {buffer.name} without conditions, or use another buffer",
            )
    return None


def _first_origin(buffer: Var, nest: Nest) -> Any:
    accesses = accesses_of([*nest.before, nest.time, *nest.after])
    return next(a.origin for a in accesses if a.buffer.same_as(buffer))


def _set_before_read(buffer: Var, stmts: list[Any], layouts: Layouts) -> bool:
    """Whether ``stmts`` set every cell of the register array of ``buffer`` before reading any."""
    box: Box = layouts.boxes[buffer]
    total = prod(box.extents)
    done: set[tuple[int, ...]] = set()
    for stmt in stmts:
        accesses = [a for a in accesses_of([stmt]) if a.buffer.same_as(buffer)]
        stores = [a for a in accesses if a.is_store]
        # A read in the same statement: only of what it has just written there.
        reads_own = accesses and accesses[0].is_store and _all_alike(accesses)
        if len(done) < total and len(stores) != len(accesses) and not reads_own:
            return False
        if isinstance(stmt, Condition) or _has_condition(stmt):
            continue
        for access in stores:
            done |= _cells_of(access, box, layouts)
    return len(done) == total


def _all_alike(accesses: list[Access]) -> bool:
    return all(
        tir.structurally_equal(mine, other)
        for access in accesses
        for mine, other in zip(access.indices, accesses[0].indices, strict=True)
    )


def _has_condition(stmt: Any) -> bool:
    if isinstance(stmt, Loop):
        return any(_has_condition(s) for s in stmt.body)
    return isinstance(stmt, Condition)


def _cells_of(access: Access, box: Box, layouts: Layouts) -> set[tuple[int, ...]]:
    """Cells of the register array that an unconditional store sets."""
    if any((tir.as_int(loop.extent) or 0) < 1 for loop in access.inner):
        return set()
    indices = list(access.indices)
    if box.time_dim is not None:
        indices[box.time_dim] = box.base[box.time_dim] + layouts.nest.time.var * box.time_step
    split = layouts.split(box.buffer, indices, access.inner)
    if split is None:
        return set()
    cells: list[tuple[int, ...]] = [()]
    used: list[Var] = []
    for offset, low, extent in zip(split.offsets, box.lower, box.extents, strict=True):
        place = tir.simplify(offset - low)
        constant = tir.as_int(place)
        if extent == 1:
            run: Any = [0]
        elif constant is not None:
            run = [constant]
        else:
            loop = next(
                (l for l in access.inner if isinstance(place, Var) and place.same_as(l.var)), None
            )
            if loop is None or any(loop.var.same_as(v) for v in used):
                return set()
            used.append(loop.var)
            run = range(int(loop.extent))
        cells = [(*c, i) for c in cells for i in run]
    return set(cells)


@dataclass(frozen=True, eq=False)
class _Leaf:
    """A store before time: its top statement's number, its target, what it depends on."""

    top: int
    target: Var
    reads: list[Var]
    copies: bool


def _leaves(
    top: int, stmts: list[Any], reads: list[Var], own_register: Callable[[Var], Var | None]
) -> list[_Leaf]:
    out: list[_Leaf] = []
    for stmt in stmts:
        if isinstance(stmt, Store):
            read = [load.source for e in [stmt.value, *stmt.indices] for load in tir.loads(e)]
            value = stmt.value.value if isinstance(stmt.value, tirx.Cast) else stmt.value
            own = own_register(stmt.buffer)
            copies = isinstance(value, TensorLoad) and own is not None and value.source.same_as(own)
            out.append(_Leaf(top, stmt.buffer, [*reads, *read], copies))
        elif isinstance(stmt, Let):
            reads = [*reads, *(load.source for load in tir.loads(stmt.value))]
        elif isinstance(stmt, Condition):
            inside = [*reads, *(load.source for load in tir.loads(stmt.cond))]
            for branch in (stmt.then, stmt.orelse):
                out += _leaves(top, branch, inside, own_register)
        elif isinstance(stmt, Loop):
            out += _leaves(top, stmt.body, reads, own_register)
    return out


def _check_order(
    before: list[Any], states: tir.VarMap, nest: Nest, layouts: Layouts
) -> Refusal | None:
    """The parts into which ``before`` is split must not need what another part sets later.

    The prologue (0) may read what it sets itself; the start (1) what itself or the prologue set;
    memory (2) is written last, and so may read only what no later statement changes.
    """

    def part(target: Var) -> int:
        return 1 if target in states else 2 if target in layouts else 0

    def own_register(buffer: Var) -> Var | None:
        timed = buffer in layouts and layouts.boxes[buffer].time_dim is not None
        return layouts.registers[buffer].state if timed else None

    leaves = [
        leaf for i, stmt in enumerate(before) for leaf in _leaves(i, [stmt], [], own_register)
    ]
    for leaf in leaves:
        mine = part(leaf.target)
        if mine == 0 and any(read in states for read in leaf.reads):
            return _reads_the_state(nest)
        for other in leaves:
            if not any(other.target.same_as(read) for read in leaf.reads):
                continue
            theirs = part(other.target)
            # A timed state is copied to memory from its register, which may change until then.
            late = mine == 2 > theirs and other.top >= leaf.top and not leaf.copies
            if theirs > mine or late:
                return _reads_the_state(nest)
    return None


def _reads_the_state(nest: Nest) -> Refusal:
    return Refusal(
        RefusalKind.UNSUPPORTED_BODY,
        nest.time.origin,
        "expected the statements before the time loop to set the state only, found one "
        "that reads it",
        "compute it in a loop nest of its own",
    )


def _kept_without_steps(nest: Nest, writer: BodyWriter, states: tir.VarMap) -> list[Any]:
    """Registers that only steps set are written back after time; without steps, as found."""
    if _always_runs(nest):
        return []
    zero = tir.zero_like(nest.time.var)
    return [
        tirx.IfThenElse(nest.time.extent <= zero, writer.copy_in(register, None), None)
        for register in writer.registers()
        if register.visible
        and not register.timed
        and register.state not in states
        and not stores_to(register.buffer, nest.before)
    ]
