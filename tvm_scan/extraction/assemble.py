"""The assembly: from a function or a nest of it to ``Recurrence | Refusal``."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlockRealize

from tvm_scan import tir
from tvm_scan.algebra import Algebra
from tvm_scan.extraction.access import Layouts, classify_accesses, store_of
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.around import build_around
from tvm_scan.extraction.boundary import Boundary, without_time_tests
from tvm_scan.extraction.carry import build_carry, prove_step
from tvm_scan.extraction.flatten import Let, Loop, Store, flatten, stores_in
from tvm_scan.extraction.nest import Nest, find_nest, rename
from tvm_scan.extraction.rewrite import BodyWriter
from tvm_scan.extraction.symbolic import StepState, execute_step
from tvm_scan.recurrence import Axis, Carry, Emit, Recurrence, Refusal, RefusalKind

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
    nest = _with_held_bindings(nest)
    refusal = _check_aliasing(func, nest)
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


def _with_held_bindings(nest: Nest) -> Nest:
    """Bindings made before time as stores to scratch, which a chunk in the middle can repeat."""
    held: tir.VarMap = tir.VarMap()
    before: list[Any] = []
    for stmt in nest.before:
        if isinstance(stmt, Let):
            name, dtype = str(stmt.var.name), tir.dtype_of(stmt.var)
            buffer = tirx.decl_buffer([1], dtype, name, scope="local")
            place = [tirx.IntImm("int32", 0)]
            before.append(Store(buffer, place, tir.substitute(stmt.value, held), stmt.origin))
            held[stmt.var] = tirx.BufferLoad(buffer, place)
        else:
            before += rename([stmt], held)
    if not len(held):
        return nest
    time = nest.time
    body = rename(time.body, held)
    loop = Loop(time.var, time.extent, body, time.origin, time.thread)
    return Nest(nest.lanes, nest.guards, before, loop, rename(nest.after, held))


def _external(func: tirx.PrimFunc, nest: Any) -> tir.VarMap:
    """Buffers that someone outside ``nest`` can see."""
    seen = tir.VarMap((param, True) for param in func.params)
    for other in root_nests(func):
        if not other.same_as(nest):
            for var in tir.variables(other).keys():
                seen[var] = True
    return seen


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


def _assemble(
    func: tirx.PrimFunc, stmt: Any, nest: Nest, layouts: Layouts, state: StepState, half: bool
) -> Recurrence | Refusal:
    writer = BodyWriter(layouts, half, state.preloaded)
    cells = state.carried
    if not cells:
        return Refusal(
            RefusalKind.NO_RECURRENCE,
            nest.time.origin,
            "expected a step that reads what an earlier step wrote, found none",
            "nothing to do: TVM's own rules already run this loop in parallel",
        )
    for buffer in [*writer.deferred.keys(), *state.preloaded.keys()]:
        if not state.covers(buffer):
            state.preloaded[buffer] = True  # it is written back in whole at each step
        if buffer in state.preloaded and buffer not in layouts.external:
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                store_of(buffer, nest),
                f"expected each step to set {buffer.name} before it reads it, found a read of "
                "cells that nobody set",
                f"set all of {buffer.name} without conditions",
            )
    carries: list[tuple[Carry, Boundary, Algebra]] = []
    for cell in cells:
        made = build_carry(cell, cells, nest, layouts, state)
        if isinstance(made, Refusal):
            return made
        algebra = prove_step(*made)
        if isinstance(algebra, Refusal):
            return algebra
        carries.append((*made, algebra))
    around = build_around(nest, layouts, writer, state, carries)
    if isinstance(around, Refusal):
        return around
    body = writer.step()
    for carry, boundary, _ in carries:
        if boundary.init is not None:
            held, time = carry.register.state, nest.time
            body = without_time_tests(body, held, boundary.init, time.var, time.extent)
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
        carries=tuple(carry for carry, _, _ in carries),
        registers=tuple(writer.registers()),
        emits=emits,
        prologue=around.prologue,
        start=around.start,
        boundary=around.boundary,
        body=body,
        finish=around.finish,
        inputs=tuple(reads.keys()),
        outputs=tuple(outputs),
        algebras=tuple(algebra for _, _, algebra in carries),
    )
