"""The assembly: from a function or a nest of it to ``Recurrence | Refusal``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize

from tvm_scan import tir
from tvm_scan.annotations import DECLARED
from tvm_scan.arguments import as_func
from tvm_scan.extraction.access import classify_accesses
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.boundary import without_time_tests
from tvm_scan.extraction.carries import make_group
from tvm_scan.extraction.compensation import rounded_on_purpose
from tvm_scan.extraction.coupling import draft_steps, find_groups, one_group
from tvm_scan.extraction.extents import Extents
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.layouts import Layouts
from tvm_scan.extraction.nest import Nest, find_nest
from tvm_scan.extraction.overwritten import overwritten
from tvm_scan.extraction.preconditions import check_preconditions
from tvm_scan.extraction.rewrite import BodyWriter
from tvm_scan.extraction.rolling import one_loop_of_time
from tvm_scan.extraction.statements import stores_in
from tvm_scan.extraction.surroundings import surroundings
from tvm_scan.extraction.symbolic import StepState, execute_step
from tvm_scan.extraction.unroll import unrolled_body
from tvm_scan.recurrence import Axis, Carry, Emit, Group, Recurrence, Refusal, RefusalKind


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
        A TensorIR function with a loop over time, one step after another, in any of the
        forms of the documentation.

    Returns
    -------
    Recurrence or Refusal
        The recurrence of the first nest that is one. Where none is, the refusal of the nest
        that came nearest: one that carries something is named before one that does not.

    Raises
    ------
    ScanError
        If it is no function of TensorIR.
    """
    func = as_func(func, "extract")
    refusals: list[Refusal] = []
    for nest in root_nests(func):
        recurrence = extract_nest(func, nest)
        if isinstance(recurrence, Recurrence):
            return recurrence
        refusals.append(recurrence)
    return most_telling(refusals)


def most_telling(refusals: Sequence[Refusal]) -> Refusal:
    """Return the first refusal of a nest that carries something, else the first of all."""
    plain = (RefusalKind.NO_RECURRENCE, RefusalKind.REDUCTION)
    telling = [refusal for refusal in refusals if refusal.kind not in plain]
    return (telling or list(refusals))[0]


def extract_nest(func: tirx.PrimFunc, nest: Any) -> Recurrence | Refusal:
    """Extract a recurrence from one statement of the root block.

    Parameters
    ----------
    func : PrimFunc
        The function that the nest belongs to.
    nest : Stmt
        One of ``root_nests(func)``.
    """
    recurrence = _extract(func, nest)
    if isinstance(recurrence, Refusal):
        return Refusal(recurrence.kind, recurrence.expr, recurrence.detail, recurrence.fix, func)
    return recurrence


def _extract(func: tirx.PrimFunc, stmt: Any) -> Recurrence | Refusal:
    tree = flatten(func, stmt)
    if isinstance(tree, Refusal):
        return tree
    external = buffers_outside(func, stmt)
    recurrence = _of_tree(func, stmt, tree.body, tree.reduced, external)
    if isinstance(recurrence, Refusal) and recurrence.kind is not RefusalKind.REDUCTION:
        # One step per iteration is the form to judge, and to speak of in a refusal.
        rolled = one_loop_of_time(tree.body, external, tree.reduced, Extents(func))
        if rolled is not None:
            return _of_tree(func, stmt, rolled, tree.reduced, external)
    return recurrence


def _of_tree(
    func: tirx.PrimFunc, stmt: Any, body: list[Any], reduced: tir.VarMap, external: tir.VarMap
) -> Recurrence | Refusal:
    nest = find_nest(body, reduced, external)
    if isinstance(nest, Refusal):
        return nest
    recurrence = _of_nest(func, stmt, nest, external)
    if isinstance(recurrence, Refusal) and nest.interchanged:
        nest = find_nest(body, reduced, external, interchange=False)
        again = nest if isinstance(nest, Refusal) else _of_nest(func, stmt, nest, external)
        return recurrence if isinstance(again, Refusal) else again
    return recurrence


def _of_nest(
    func: tirx.PrimFunc, stmt: Any, nest: Nest, external: tir.VarMap
) -> Recurrence | Refusal:
    refusal = check_preconditions(func, nest)
    if refusal is not None:
        return refusal
    recurrence = _step(func, stmt, nest, external)
    names = None if func.attrs is None else func.attrs.get(DECLARED)
    if isinstance(recurrence, Refusal) and names is not None:
        return _step(func, stmt, nest, external, tuple(str(name) for name in names))
    if isinstance(recurrence, Refusal) and recurrence.kind in _BY_NAME:
        body = unrolled_body(nest.time.body)
        if body is not None:
            again = _step(func, stmt, replace(nest, time=replace(nest.time, body=body)), external)
            return again if isinstance(again, Recurrence) else recurrence
    return recurrence


#: Refusals that small loops over named cells may cause.
_BY_NAME = (RefusalKind.COUPLED_CARRIES, RefusalKind.UNSUPPORTED_BODY)


def _step(
    func: tirx.PrimFunc,
    stmt: Any,
    nest: Nest,
    external: tir.VarMap,
    declared: tuple[str, ...] = (),
) -> Recurrence | Refusal:
    written = tir.VarMap(
        (store.buffer, True)
        for store in stores_in(nest.before) + stores_in(nest.time.body) + stores_in(nest.after)
    ).keys()
    layouts = classify_accesses(nest, external, written)
    if isinstance(layouts, Refusal):
        return layouts
    half = any(tir.is_half(tir.dtype_of(buffer)) for buffer in written)
    state = execute_step(layouts, nest.time.body, half)
    return _assemble(func, stmt, nest, layouts, state, half, declared)


def buffers_outside(func: tirx.PrimFunc, nest: Any) -> tir.VarMap:
    """Buffers that someone outside ``nest`` can see."""
    seen = tir.VarMap((param, True) for param in func.params)
    for other in root_nests(func):
        if not other.same_as(nest):
            for var in tir.variables(other).keys():
                seen[var] = True
    return seen


def _assemble(
    func: tirx.PrimFunc,
    stmt: Any,
    nest: Nest,
    layouts: Layouts,
    state: StepState,
    half: bool,
    declared: tuple[str, ...],
) -> Recurrence | Refusal:
    if not state.cells:
        return overwritten(nest.time)
    writer = BodyWriter(layouts, half, state.preloaded)
    drafts = draft_steps(nest, layouts, state)
    if isinstance(drafts, Refusal):
        return drafts
    if not declared and (refusal := rounded_on_purpose(drafts, state, writer)) is not None:
        return refusal
    components = one_group(drafts) if declared else find_groups(drafts)
    if isinstance(components, Refusal):
        return components
    carries: list[Carry] = []
    groups: list[Group] = []
    start: list[Any] = []
    body = writer.step()
    for component, level in components:
        members = [drafts[i] for i in component]
        group = make_group(members, nest, layouts, state, writer, declared)
        if isinstance(group, Refusal):
            return group
        positions = tuple(range(len(carries), len(carries) + len(component)))
        carries += group.carries
        groups.append(Group(positions, group.algebra, level))
        start += group.start
        for carry, init in zip(group.carries, group.inits, strict=True):
            if init is not None:
                time = nest.time
                body = without_time_tests(body, carry.state, init, time.var, time.extent)
    around = surroundings(nest, layouts, writer, carries)
    if isinstance(around, Refusal):
        return around
    prologue, state_start, boundary_writes, finish = around
    guard = tir.all_of(nest.guards)
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
        start=tir.seq([*start, state_start]),
        boundary=boundary_writes,
        body=body,
        finish=finish,
        inputs=tuple(reads.keys()),
        outputs=tuple(outputs),
        groups=tuple(groups),
    )
