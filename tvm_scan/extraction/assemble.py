"""The assembly: from a function or a nest of it to ``Recurrence | Refusal``."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Range, Var
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.algebra import Algebra, classify
from tvm_scan.extraction.access import Layouts, classify_accesses, lanes_apart
from tvm_scan.extraction.boundary import (
    Boundary,
    decide_time_tests,
    split_boundary,
    without_time_tests,
)
from tvm_scan.extraction.flatten import Condition, Let, flatten, keep_stores, rebuild, stores_in
from tvm_scan.extraction.nest import Nest, accesses_of, find_nest, rename
from tvm_scan.extraction.rewrite import BodyWriter
from tvm_scan.extraction.symbolic import Cell, StepState, execute_step
from tvm_scan.recurrence import (
    Axis,
    Carry,
    Emit,
    Recurrence,
    Refusal,
    RefusalKind,
    Register,
)

__all__ = ["extract", "extract_nest", "root_nests"]


def root_nests(func: tirx.PrimFunc) -> list[Any]:
    """Statements of the root block of ``func``, each a loop nest of its own."""
    body = func.body
    if isinstance(body, SBlockRealize) and len(body.block.iter_vars) == 0:
        body = body.block.body
    if not isinstance(body, tirx.SeqStmt):
        return [body]
    if any(isinstance(s, tirx.Bind | tirx.BufferStore) for s in body.seq):
        return [body]
    return [s for s in body.seq if not isinstance(s, tirx.AllocBuffer)]


def extract(func: tirx.PrimFunc) -> Recurrence | Refusal:
    """Find the recurrence in a function and prove what it is.

    Parameters
    ----------
    func : PrimFunc
        A TensorIR function with a loop that walks time one step after another, in any of the
        forms of the documentation.

    Returns
    -------
    Recurrence or Refusal
        The recurrence of the first nest that is one. Where none is, the refusal of the nest
        that came nearest: one that carries something is named before one that does not.
    """
    refusals: list[Refusal] = []
    for nest in root_nests(func):
        found = extract_nest(func, nest)
        if isinstance(found, Recurrence):
            return found
        refusals.append(found)
    plain = (RefusalKind.NO_RECURRENCE, RefusalKind.REDUCTION)
    telling = [r for r in refusals if r.kind not in plain]
    return (telling or refusals)[0]


def extract_nest(func: tirx.PrimFunc, nest: Any) -> Recurrence | Refusal:
    """As ``extract``, for one statement of the root block.

    Parameters
    ----------
    func : PrimFunc
        The function that the nest belongs to.
    nest : Stmt
        One of ``root_nests(func)``.

    Returns
    -------
    Recurrence or Refusal
    """
    found = _extract(func, nest)
    if isinstance(found, Refusal):
        return Refusal(found.kind, found.expr, found.detail, found.fix, func)
    return found


def _extract(func: tirx.PrimFunc, stmt: Any) -> Recurrence | Refusal:
    tree = flatten(stmt)
    if isinstance(tree, Refusal):
        return tree
    external = _external(func, stmt)
    nest = find_nest(tree.body, tree.reduced, external)
    if isinstance(nest, Refusal):
        return nest
    if (refused := _inline_bindings(nest)) is not None:
        return refused
    refusal = _check_rectangular(nest) or _check_aliasing(func, nest)
    if refusal is not None:
        return refusal
    written = tir.VarMap(
        (store.buffer, True)
        for store in stores_in(nest.before) + stores_in(nest.time.body) + stores_in(nest.after)
    ).keys()
    layouts = classify_accesses(nest, external, written)
    if isinstance(layouts, Refusal):
        return layouts
    half = any(tir.is_half(tir.dtype_of(buffer)) for buffer in written)
    state = execute_step(layouts, nest.time.body, half)
    return _assemble(func, stmt, nest, layouts, state, half)


def _external(func: tirx.PrimFunc, nest: Any) -> tir.VarMap:
    """Buffers that someone outside ``nest`` can see."""
    seen = tir.VarMap((param, True) for param in func.params)
    for other in root_nests(func):
        if not other.same_as(nest):
            for var in tir.variables(other).keys():
                seen[var] = True
    return seen


def _inline_bindings(nest: Nest) -> Refusal | None:
    """Write out bindings before the time loop, so that every chunk of time knows them.

    A binding of what the nest only reads has the same value wherever it is evaluated.
    """
    everything = [*nest.before, nest.time, *nest.after]
    written = tir.VarMap((store.buffer, True) for store in stores_in(everything))
    for let in [stmt for stmt in nest.before if isinstance(stmt, Let)]:
        if any(load.source in written for load in tir.loads(let.value)):
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                let.origin,
                f"expected {let.var.name}, bound before the time loop, to depend on inputs only, "
                "found that it reads a buffer that the nest writes",
                "store the value in a buffer of its own, in a loop nest of its own",
            )
        table = tir.VarMap([(let.var, let.value)])
        nest.before = rename([stmt for stmt in nest.before if stmt is not let], table)
        nest.time.body = rename(nest.time.body, table)
        nest.after = rename(nest.after, table)
    return None


def _check_rectangular(nest: Nest) -> Refusal | None:
    """Lanes and time must form a box: no extent may depend on another of them, or on data."""
    loops = [*nest.lanes, nest.time]
    for loop in loops:
        if tir.loads(loop.extent) or tir.contains_var(loop.extent, [l.var for l in loops]):
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                loop.origin,
                f"expected lanes and time with extents of their own, found {loop.var.name} with "
                f"the extent {loop.extent}",
                "walk the largest extent and guard the body",
            )
    return None


def _check_aliasing(func: tirx.PrimFunc, nest: Nest) -> Refusal | None:
    """A store to one of two buffers on one allocation may be a read of the other."""
    views = tir.VarMap()

    def visit(view: tirx.DeclBuffer) -> None:
        views[view.buffer] = True

    tvm_ffi.structural_walk(func.body, [(tirx.DeclBuffer, visit)])
    for access in accesses_of([*nest.before, nest.time, *nest.after]):
        if access.buffer in views:
            return Refusal(
                RefusalKind.ALIASING,
                access.origin,
                f"expected buffers with storage of their own, found {access.buffer.name}, which "
                "is declared on the data of another",
                "index the original buffer instead of a declared view of its data",
            )
    noalias = None if func.attrs is None else func.attrs.get("tirx.noalias")
    if noalias is not None and not bool(noalias):
        return Refusal(
            RefusalKind.ALIASING,
            nest.time.origin,
            "expected parameters that do not overlap, found tirx.noalias set to False",
            'declare T.func_attr({"tirx.noalias": True}) if they do not overlap',
        )
    return None


def _carried(state: StepState) -> list[Cell]:
    """Cells whose value before the step is used, by the step or by an emit."""
    return list(state.cells.values())


def _assemble(
    func: tirx.PrimFunc, stmt: Any, nest: Nest, layouts: Layouts, state: StepState, half: bool
) -> Recurrence | Refusal:
    writer = BodyWriter(layouts, half, state.preloaded)
    cells = _carried(state)
    if not cells:
        return Refusal(
            RefusalKind.NO_RECURRENCE,
            nest.time.origin,
            "expected a step that reads what an earlier step wrote, found none",
            "nothing to do: TVM's own rules already run this loop in parallel",
        )
    carries: list[Carry] = []
    algebras: list[Algebra] = []
    start: list[Any] = []
    body = writer.step()
    for cell in cells:
        made = _carry(cell, cells, nest, layouts, state)
        if isinstance(made, Refusal):
            return made
        carry, boundary = made
        algebra = _prove(carry, boundary)
        if isinstance(algebra, Refusal):
            return algebra
        begin = _start(carry, boundary, algebra, nest, layouts, writer)
        if isinstance(begin, Refusal):
            return begin
        start.append(begin)
        if boundary.init is not None:
            held, time = carry.register.state, nest.time
            body = without_time_tests(body, held, boundary.init, time.var, time.extent)
        carries.append(carry)
        algebras.append(algebra)
    carried = tir.VarMap((c.register.buffer, True) for c in carries)
    around = _surroundings(nest, layouts, writer, carried)
    if isinstance(around, Refusal):
        return around
    prologue, state_start, boundary_writes, finish = around
    guard = None
    for cond in nest.guards:
        guard = cond if guard is None else tirx.And(guard, cond)
    emits = tuple(
        Emit(store.buffer, store.origin)
        for store in stores_in(nest.time.body)
        if layouts.boxes[store.buffer].time_dim is not None and store.buffer in layouts.external
    )
    reads = tir.VarMap(
        (a.buffer, True)
        for a in accesses_of([*nest.before, nest.time, *nest.after])
        if not a.is_store and (a.buffer not in layouts or a.buffer in layouts.external)
    )
    outputs = [b for b in layouts.boxes.keys() if b in layouts.external]
    return Recurrence(
        func=func,
        nest=stmt,
        lanes=tuple(Axis(lane.var, lane.extent) for lane in nest.lanes),
        time=Axis(nest.time.var, nest.time.extent),
        guard=guard,
        carries=tuple(carries),
        registers=tuple(writer.registers()),
        emits=emits,
        prologue=prologue,
        start=tir.seq([s for s in [*start, state_start] if s is not None]),
        boundary=boundary_writes,
        body=body,
        finish=finish,
        inputs=tuple(reads.keys()),
        outputs=tuple(outputs),
        algebras=tuple(algebras),
    )


def _carry(
    cell: Cell, cells: list[Cell], nest: Nest, layouts: Layouts, state: StepState
) -> tuple[Carry, Boundary] | Refusal:
    slot = (StepState._id(cell.buffer), cell.key)
    step = state.values.get(slot)
    origin = state.origins.get(slot, nest.time.origin)
    name = cell.buffer.name
    if step is None:
        return Refusal(
            RefusalKind.UNSUPPORTED_BODY,
            nest.time.origin,
            f"expected the cell of {name} that a step reads to be written by the same index, "
            f"found no such store",
            "write the state at the index at which the next step reads it",
        )
    step = state.resolve(step, cell)
    befores = tir.VarMap((c.before, True) for c in cells)
    opaque = tir.VarMap((var, True) for var in state.opaque.keys())
    if tir.contains_var(step, opaque.keys()):
        unknown = [var for var in tir.variables(step).keys() if var in opaque]
        if any(state.depends_on(var, befores) for var in unknown):
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
    if tir.contains_var(step, befores.keys()):
        return Refusal(
            RefusalKind.COUPLED_CARRIES,
            origin,
            f"expected the step of {name} to depend on no other carry, found "
            f"{_name_dependency(step, cells, cell)} in it",
            "carries that feed one another are not supported yet",
        )
    if _seen_at_first(cell, slot, nest, state) or _kept_if_empty(cell, nest, layouts):
        # Someone emits the state before step 0: it is an initial state, whatever step 0 does.
        boundary = Boundary(step)
    else:
        boundary = split_boundary(step, cell.old, nest.time.var, nest.time.extent)
    register = layouts.registers[cell.buffer]
    axes, place = [], []
    for dim, key in enumerate(cell.key):
        if key == "s":
            var = state.state_var(cell.buffer, dim)
            axes.append(Axis(var, register.extents[dim]))
            place.append(var)
        else:
            place.append(tirx.IntImm("int32", key))
    dtype = tir.wide_dtype(tir.dtype_of(cell.buffer))
    carry = Carry(
        register, tuple(place), tuple(axes), cell.old, boundary.step, boundary.first, dtype, origin
    )
    return carry, boundary


def _kept_if_empty(cell: Cell, nest: Nest, layouts: Layouts) -> bool:
    """Whether the state before time matters beyond step 0: it is set, or a lane may be empty."""
    if any(store.buffer.same_as(cell.buffer) for store in stores_in(nest.before)):
        return True
    register = layouts.registers[cell.buffer]
    extent = tir.as_int(nest.time.extent)
    return register.visible and not register.timed and (extent is None or extent < 1)


def _seen_at_first(cell: Cell, own: tuple[int, Any], nest: Nest, state: StepState) -> bool:
    """Whether step 0 stores the state before it anywhere but in the carry itself."""
    old = tir.VarMap([(cell.before, True)])
    time = nest.time
    return any(
        state.depends_on(decide_time_tests(value, time.var, time.extent, first=True), old)
        for slot, value in state.values.items()
        if slot != own
    )


def _name_dependency(step: Any, cells: list[Cell], own: Cell) -> str:
    for cell in cells:
        if not cell.before.same_as(own.before) and tir.contains_var(step, [cell.before]):
            return str(cell.buffer.name)
    return f"another cell of {own.buffer.name}"


def _prove(carry: Carry, boundary: Boundary) -> Algebra | Refusal:
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


def _start(
    carry: Carry,
    boundary: Boundary,
    algebra: Algebra,
    nest: Nest,
    layouts: Layouts,
    writer: BodyWriter,
) -> Any | Refusal:
    """Statement that sets the carry's registers to the state before step 0."""
    register = carry.register
    if boundary.init is not None or boundary.first is not None:
        value = algebra.neutral() if boundary.init is None else boundary.init
        if tir.loads(value) and (tir.as_int(nest.time.extent) or 0) < 1:
            # The loop reads it at step 0; where there is none, it may lie outside its buffer.
            exists = nest.time.extent > tir.zero_like(nest.time.var)
            value = tirx.op.if_then_else(exists, value, algebra.neutral())
        if tir.dtype_of(value) != carry.dtype:
            value = tirx.Cast(carry.dtype, value)
        stmt: Any = tirx.BufferStore(register.state, value, list(carry.cell))
        for axis in reversed(carry.state_axes):
            zero, count = tirx.IntImm("int32", 0), tirx.IntImm("int32", axis.extent)
            stmt = tirx.For(axis.var, zero, count, tirx.ForKind.SERIAL, stmt)
        return tir.fresh_copy(stmt)
    stored = any(store.buffer.same_as(register.buffer) for store in stores_in(nest.before))
    if not register.timed:
        if not stored and not register.visible:
            return Refusal(
                RefusalKind.NO_INITIAL_STATE,
                carry.origin,
                f"expected an initial state of {carry.name}, found none: it is local to the "
                "nest and nothing sets it before the first step",
                f"set {carry.name} before the time loop",
            )
        if stored and _sets_all(register, nest):
            return None
        return None if not register.visible else writer.copy_in(register, None, previous=True)
    if stored:
        return None
    if not lanes_apart(register.buffer, layouts, extra_steps=1):
        return Refusal(
            RefusalKind.CROSS_LANE,
            carry.origin,
            f"expected the cell of {carry.name} before step 0 to be its lane's own, found that "
            "another lane may write it",
            "guard the first step with T.if_then_else(t > 0, ..., initial value)",
        )
    before = tirx.IntImm(tir.dtype_of(nest.time.var), -1)
    place = [tirx.IntImm("int32", 0)] * len(register.extents)
    index = writer.memory_index(register, place, before)
    if not _in_bounds(index, register.buffer, nest):
        return Refusal(
            RefusalKind.NO_INITIAL_STATE,
            carry.origin,
            f"expected an initial state of {carry.name} for step 0, found a read of "
            f"[{', '.join(str(i) for i in index)}], which is not provably inside the buffer",
            "guard the first step with T.if_then_else(t > 0, ..., initial value), or use a "
            "history buffer with one more cell",
        )
    return writer.copy_in(register, before, previous=True)


def _sets_all(register: Register, nest: Nest) -> bool:
    """Whether the statements before time set every cell of the register array."""
    for access in accesses_of([s for s in nest.before if not isinstance(s, Condition)]):
        if access.is_store and access.buffer.same_as(register.buffer):
            cells = [tir.as_int(loop.extent) for loop in access.inner]
            if None not in cells and prod(cells) == prod(register.extents):  # type: ignore[arg-type]
                return True
    return False


def _in_bounds(index: list[Any], buffer: Var, nest: Nest) -> bool:
    analyzer = Analyzer()
    for lane in nest.lanes:
        analyzer.bind(lane.var, Range.from_min_extent(tir.zero_like(lane.var), lane.extent))
    for value, extent in zip(index, tir.shape_of(buffer), strict=True):
        # Lane indices are the user's own; only the time dimension is in question.
        if tir.contains_var(value, [lane.var for lane in nest.lanes]):
            continue
        low = analyzer.can_prove(value >= tir.zero_like(value))
        if not (low and analyzer.can_prove(value < extent)):
            return False
    return True


def _surroundings(
    nest: Nest, layouts: Layouts, writer: BodyWriter, carried: tir.VarMap
) -> tuple[Any, Any, Any, Any] | Refusal:
    """Prologue, start of the carries, boundary writes and finish."""
    first = tirx.IntImm(tir.dtype_of(nest.time.var), -1)
    last = nest.time.extent - 1
    before = writer.rewrite(nest.before, [], first)
    states = tir.VarMap((layouts.registers[b].state, True) for b in carried.keys())
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
    kept = [
        tirx.IfThenElse(nest.time.extent <= zero, writer.copy_in(register, None), None)
        for register in writer.registers()
        if register.visible
        and not register.timed
        and register.state not in states
        and (extent is None or extent < 1)
    ]
    after = writer.rewrite(nest.after, [], last)
    finish = [rebuild(after)] if after else []
    for register in writer.registers():
        if register.visible and not register.timed:
            finish.append(writer.copy_out(register, None))
    return (
        tir.seq([*kept, rebuild(plain)]) if kept or stores_in(plain) else None,
        _statement(keep_stores(before, lambda b: b in states)),
        _statement(keep_stores(before, lambda b: b in layouts.boxes)),
        tir.seq(finish) if finish else None,
    )


def _statement(stmts: list[Any]) -> Any:
    return rebuild(stmts) if stores_in(stmts) else None
