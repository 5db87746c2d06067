"""The way from drafts to carries: the first step, the family, and the state before time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Range, Var
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.algebra import Algebra, System, classify
from tvm_scan.algebra.base import Forgetting, NotInFamily
from tvm_scan.algebra.literal import zero
from tvm_scan.extraction.accesses import Access, accesses_of, without_conditions
from tvm_scan.extraction.boundary import (
    Boundary,
    decide_time_tests,
    joint_initial_values,
    lag_initial_values,
    split_boundary,
)
from tvm_scan.extraction.cells import Cell
from tvm_scan.extraction.coupling import Draft
from tvm_scan.extraction.disjoint import lanes_apart
from tvm_scan.extraction.layouts import Layouts
from tvm_scan.extraction.nest import Nest, linear_in
from tvm_scan.extraction.rewrite import BodyWriter
from tvm_scan.extraction.statements import stores_in
from tvm_scan.extraction.symbolic import StepState
from tvm_scan.extraction.wording import in_own_words
from tvm_scan.recurrence import Carry, Refusal, RefusalKind, Register
from tvm_scan.text import as_text


@dataclass(eq=False)
class JointGroup:
    """Carries of one group, its algebra, the statements that start it, and initial values."""

    carries: list[Carry]
    algebra: Algebra
    start: list[Any]
    inits: list[Any]


def make_group(
    drafts: list[Draft],
    nest: Nest,
    layouts: Layouts,
    state: StepState,
    writer: BodyWriter,
    declared: tuple[str, ...] = (),
) -> JointGroup | Refusal:
    """Decide the first step of a group, prove its family, and start it.

    Parameters
    ----------
    drafts : list of Draft
        The carries of the group.
    nest : Nest
        The loop nest.
    layouts : Layouts
        The boxes of its written buffers.
    state : StepState
        One executed step.
    writer : BodyWriter
        Writes memory into registers.
    declared : tuple of str
        Inputs of an operator that was declared associative.
    """
    needed = [_needs_memory(draft, nest, layouts, state) for draft in drafts]
    if len(drafts) == 1:
        boundaries = [_single_boundary(drafts[0], needed[0], nest, state)]
    else:
        boundaries = _joint_boundaries(drafts, any(needed), nest)

    def prove() -> Algebra | NotInFamily:
        starts = [
            _starts(draft, boundary, need, nest, layouts)
            for draft, boundary, need in zip(drafts, boundaries, needed, strict=True)
        ]
        return classify(
            System(
                tuple(boundary.step for boundary in boundaries),
                tuple(draft.cell.old for draft in drafts),
                tuple(tir.wide_dtype(tir.dtype_of(draft.cell.buffer)) for draft in drafts),
                declared,
                tuple(starts),
            )
        )

    algebra = prove()
    if boundaries[0].first is not None and not isinstance(algebra, Forgetting):
        # The family cannot forget a carry; with its test on time the step is a reset at 0.
        boundaries = [Boundary(draft.step) for draft in drafts]
        algebra = prove()
    carries = [
        _carry(draft, boundary, layouts) for draft, boundary in zip(drafts, boundaries, strict=True)
    ]
    if not isinstance(algebra, Algebra):
        return _unsupported(algebra, carries, in_own_words(algebra.expr, state, writer))
    if isinstance(algebra, Forgetting):
        neutral = algebra.neutral()
    else:
        neutral = tuple(zero(carry.dtype) for carry in carries)
    start: list[Any] = []
    for i, carry in enumerate(carries):
        begin = (
            _from_memory(carry, nest, layouts, writer)
            if needed[i]
            else _initialised(carry, boundaries[i].init, neutral[i], nest)
        )
        if isinstance(begin, Refusal):
            return begin
        start.append(begin)
    return JointGroup(carries, algebra, start, [boundary.init for boundary in boundaries])


def _starts(
    draft: Draft, boundary: Boundary, needed: bool, nest: Nest, layouts: Layouts
) -> tuple[Any, ...] | None:
    """Values that a carry may have before step 0; none where step 0 sets it, None for any."""
    if boundary.init is not None:
        return (boundary.init,)
    if not needed:
        return ()
    cell = draft.cell
    register = layouts.registers[cell.buffer]
    if not _sets_all(register, nest, _of_step_before(register, cell.lag, nest, layouts)):
        return None
    return tuple(s.value for s in stores_in(nest.before) if s.buffer.same_as(cell.buffer))


def _needs_memory(draft: Draft, nest: Nest, layouts: Layouts, state: StepState) -> bool:
    """Return whether someone reads the state before time that this carry starts from.

    A read of lag ``j`` at step ``s < j`` reads ``j - s`` steps before time.
    """
    cell = draft.cell
    if cell.lag == 1 and _kept_if_empty(cell, nest, layouts):
        return True
    ident = StepState._id(cell.buffer)
    for other in state.cells.values():
        if StepState._id(other.buffer) != ident or other.key != cell.key or other.lag < cell.lag:
            continue
        before = tir.VarMap([(other.before, True)])
        step = other.lag - cell.lag

        def at(value: Any, step: int = step) -> Any:
            return decide_time_tests(value, nest.time.var, nest.time.extent, step)

        if any(state.depends_on(value, before, at) for value in state.values.values()):
            return True
    return False


def _kept_if_empty(cell: Cell, nest: Nest, layouts: Layouts) -> bool:
    """Return whether the state before time matters beyond step 0: it is set, or a lane is empty."""
    if any(store.buffer.same_as(cell.buffer) for store in stores_in(nest.before)):
        return True
    register = layouts.registers[cell.buffer]
    extent = tir.as_int(nest.time.extent)
    return register.visible and not register.timed and (extent is None or extent < 1)


def _single_boundary(draft: Draft, needed: bool, nest: Nest, state: StepState) -> Boundary:
    if needed:
        return Boundary(draft.step)
    befores = [cell.before for cell in state.cells.values()]
    return split_boundary(draft.step, draft.cell.old, nest.time.var, nest.time.extent, befores)


def _joint_boundaries(drafts: list[Draft], needed: bool, nest: Nest) -> list[Boundary]:
    steps, olds = [d.step for d in drafts], [d.cell.old for d in drafts]
    values = None
    if not needed:
        around = nest.time.var, nest.time.extent
        values = joint_initial_values(steps, olds, *around)
        values = values or lag_initial_values(steps, olds, *around)
    if values is None:
        # The tests on time stay in the step: as coefficients that vary with time.
        return [Boundary(step) for step in steps]
    return [Boundary(step, init=init) for step, init in zip(*values, strict=True)]


def _carry(draft: Draft, boundary: Boundary, layouts: Layouts) -> Carry:
    cell = draft.cell
    indices = [tirx.IntImm("int32", k) if isinstance(k, int) else k for k in cell.indices]
    return Carry(
        register=layouts.registers[cell.buffer],
        cell=tuple(indices),
        state_axes=tuple(draft.axes),
        old=cell.old,
        before=cell.before,
        lag=cell.lag,
        step=boundary.step,
        first=boundary.first,
        dtype=tir.wide_dtype(tir.dtype_of(cell.buffer)),
        origin=draft.origin,
    )


def _unsupported(reason: Any, carries: list[Carry], shown: str) -> Refusal:
    names = " and ".join(dict.fromkeys(carry.name for carry in carries))
    kind = RefusalKind.UNSUPPORTED_STEP if len(carries) == 1 else RefusalKind.COUPLED_CARRIES
    return Refusal(
        kind,
        _locate(reason.expr, carries),
        f"expected a step of {names} whose composition stays in one family (affine, one "
        f"associative operator, ...); found {reason.reason} in {shown}",
        reason.fix or _REWRITE,
    )


_REWRITE = (
    "rewrite the step as a*h + b or as h op x with a, b and x free of the carry; all families are "
    "listed in docs/families.md"
)


def _locate(expr: Any, carries: list[Carry]) -> Any:
    """The node of the user's own statement that looks like ``expr``."""
    store = carries[0].origin
    if not isinstance(store, tirx.BufferStore):
        return store
    for node in tir.nodes(store.value, type(expr)):
        if type(node) is type(expr) and tir.call_name(node) == tir.call_name(expr):
            reads = [load.source for load in tir.loads(node)]
            if any(source.same_as(c.register.buffer) for source in reads for c in carries):
                return node
    return store


# ---- the state before time --------------------------------------------------------------------


def _initialised(carry: Carry, init: Any, neutral: Any, nest: Nest) -> Any:
    """Set a carry that no memory holds before time: to its initial value, or out of the way."""
    value = neutral if init is None else init
    if tir.loads(value) and (tir.as_int(nest.time.extent) or 0) < 1:
        # The loop reads it at step 0; where there is none, it may lie outside its buffer.
        exists = nest.time.extent > tir.zero_like(nest.time.var)
        value = tirx.op.if_then_else(exists, value, neutral)
    if tir.dtype_of(value) != carry.dtype:
        value = tirx.Cast(carry.dtype, value)
    store = tirx.BufferStore(carry.state, value, list(carry.cell))
    axes = [(axis.var, tirx.IntImm("int32", axis.extent)) for axis in carry.state_axes]
    return tir.fresh_copy(tir.loops_over(axes, store))


def _from_memory(carry: Carry, nest: Nest, layouts: Layouts, writer: BodyWriter) -> Any | Refusal:
    """Read the state before time, unless the statements before the time loop set all of it."""
    register, lag = carry.register, carry.lag
    stored = [store for store in stores_in(nest.before) if store.buffer.same_as(register.buffer)]
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
        return None if not register.visible else writer.copy_in(register, None, lag=1)
    if _sets_all(register, nest, _of_step_before(register, lag, nest, layouts)):
        return None
    if not lanes_apart(register.buffer, layouts, extra_steps=lag):
        return Refusal(
            RefusalKind.CROSS_LANE,
            carry.origin,
            f"expected the cell of {carry.name} before step 0 to be its lane's own, found that "
            "another lane may write it",
            "guard the first step with T.if_then_else(t > 0, ..., initial value)",
        )
    earlier = tirx.IntImm(tir.dtype_of(nest.time.var), -lag)
    origin = [tirx.IntImm("int32", 0)] * len(register.extents)
    index = writer.memory_index(register, origin, earlier)
    exists = None
    if not _in_bounds(index, register.buffer, nest):
        # The loop reads it at step 0, if there is one.
        exists = _has_steps(nest.time.extent)
        if not _in_bounds(index, register.buffer, nest, exists):
            return Refusal(
                RefusalKind.NO_INITIAL_STATE,
                carry.origin,
                f"expected an initial state of {carry.name} for step {lag - 1}, found a read of "
                f"[{', '.join(map(as_text, index))}], which is not provably inside the buffer",
                f"guard the first steps with T.if_then_else(t > {lag - 1}, ..., initial value), or "
                "use a history buffer with more cells",
            )
    return writer.copy_in(register, earlier, lag, exists)


def _has_steps(extent: Any) -> Any:
    """Condition of a loop that runs at all; ``max(e, 0) > 0`` is ``e > 0``, which tells more."""
    if isinstance(extent, tirx.Max):
        for inner, other in ((extent.a, extent.b), (extent.b, extent.a)):
            if tir.as_int(other) == 0:
                return inner > other
    return extent > tir.zero_like(extent)


def _of_step_before(
    register: Register, lag: int, nest: Nest, layouts: Layouts
) -> Callable[[Access], bool]:
    """Make the test for an access of the cell that ``lag`` steps before step 0 would write."""
    dim = layouts.boxes[register.buffer].time_dim
    before = tirx.IntImm(tir.dtype_of(nest.time.var), -1)

    def is_it(access: Access) -> bool:
        if dim is None:
            return True
        return layouts.steps_back(access.buffer, access.indices[dim], before) == lag - 1

    return is_it


def _sets_all(
    register: Register, nest: Nest, wanted: Callable[[Access], bool] = lambda _: True
) -> bool:
    """Return whether the statements before time set every cell of the register array.

    One store does it where every dimension with several cells is indexed by a loop of its own
    that runs through all of them. Stores under a condition do not count.
    """
    return any(
        _runs_through(access, register)
        for access in accesses_of(without_conditions(nest.before))
        if access.is_store and access.buffer.same_as(register.buffer) and wanted(access)
    )


def _runs_through(access: Access, register: Register) -> bool:
    left = list(access.inner)
    for index, extent in zip(access.indices, register.extents, strict=True):
        if extent == 1:
            continue
        for loop in left:
            part = linear_in(index, loop.var)
            if part is None or abs(part[0]) != 1 or tir.as_int(loop.extent) != extent:
                continue
            if not tir.contains_var(part[1], [other.var for other in access.inner]):
                left.remove(loop)
                break
        else:
            return False
    return True


def _in_bounds(index: list[Any], buffer: Var, nest: Nest, condition: Any = None) -> bool:
    """Return whether a cell lies inside its buffer, ``condition`` a condition."""
    analyzer = Analyzer()
    for lane in nest.lanes:
        analyzer.bind(lane.var, Range.from_min_extent(tir.zero_like(lane.var), lane.extent))
    with analyzer.constraint_scope(tirx.const(True, "bool") if condition is None else condition):
        for value, extent in zip(index, tir.shape_of(buffer), strict=True):
            # Lane indices are the user's own; only the time dimension is in question.
            if tir.contains_var(value, [lane.var for lane in nest.lanes]):
                continue
            low = analyzer.can_prove(value >= tir.zero_like(value))
            if not (low and analyzer.can_prove(value < extent)):
                return False
    return True
