"""One step of a loop as a Relax function, lowered to TensorIR and wrapped in a loop over time.

Front ends hand over what happens in a step as a graph of tensors. TVM's own operators lower it,
so that a step may do whatever a model may do; the loop around it is sequential and right in any
case, and parallel where the extraction finds a recurrence in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import relax, tirx, topi
from tvm.ir import GenericConst, Var
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import BufferStore

from tvm_scan import tir
from tvm_scan.annotations import OP_PATTERN, OPAQUE_PATTERN
from tvm_scan.errors import ScanError
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.statements import rebuild
from tvm_scan.recurrence import Refusal
from tvm_scan.relax.repairs.dtypes import RepairOperators
from tvm_scan.relax.step.form import is_point, point_store, without_copies, without_unit_loops
from tvm_scan.relax.step.primitive import fused_step
from tvm_scan.schedules.splice import blocks_in, ensure_blocks

#: Writes the step, given its parameters as Relax variables; returns what it computes.
StepWriter = Callable[[relax.BlockBuilder, list[relax.Var]], Sequence[relax.Expr]]


@dataclass(frozen=True, eq=False)
class LoweredStep:
    """A step as TensorIR.

    Attributes
    ----------
    inputs : tuple of Var
        Buffer of each parameter, then of each constant tensor of the step.
    outputs : tuple of Var
        Buffer of each result.
    body : tuple of Stmt
        Plain loop nests, in order.
    allocs : tuple of Var
        Buffers between the nests.
    constants : tuple of GenericConst
        Constant tensors of the step, which a call of the loop passes on: all steps share them.
    """

    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    body: tuple[Any, ...]
    allocs: tuple[Var, ...]
    constants: tuple[GenericConst, ...] = ()


def lower_step(types: Sequence[relax.TensorType], write: StepWriter) -> LoweredStep:
    """Lower a step with TVM's own operators, elementwise ones inlined into their readers.

    Parameters
    ----------
    types : sequence of relax.TensorType
        Of the parameters.
    write : callable
        Emits the step into a dataflow block and returns its results.

    Raises
    ------
    ScanError
        If an operator of the step cannot be lowered to TensorIR.
    """
    builder = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", kind) for i, kind in enumerate(types)]
    with builder.function("step", params, attrs={"Primitive": 1}, private=True):
        with builder.dataflow():
            results: list[relax.Expr] = []
            for result in write(builder, params):
                # A result must be written, also where it is a parameter or another result.
                known = any(result.same_as(other) for other in (*params, *results))
                is_var = isinstance(result, relax.Var) and not known
                results.append(result if is_var else builder.emit_te(topi.identity, result))
            out = builder.emit_output(relax.Tuple(results))
        step = builder.emit_func_output(out)
    mod = RepairOperators()(builder.get())
    fused = fused_step(mod, mod.get_global_var(step.name_hint))
    func = _inlined(fused.func)
    kinds = [*types, *(constant.ty for constant in fused.constants)]
    inputs = [_unread(f"unread{i}", kind) for i, kind in enumerate(kinds)]
    for position, buffer in zip(fused.reads, func.params, strict=False):
        inputs[position] = buffer
    nests = []
    for nest in root_nests(func):
        tree = flatten(func, nest)
        if isinstance(tree, Refusal):
            raise ScanError(f"tvm_scan.relax: the step cannot be put into a loop: {tree}")
        nests.append(without_unit_loops(rebuild(tree.body)))
    outputs, allocs = list(func.params[len(fused.reads) :]), list(func.body.block.alloc_buffers)
    nests, allocs = without_copies(nests, outputs, allocs)
    return LoweredStep(tuple(inputs), tuple(outputs), tuple(nests), tuple(allocs), fused.constants)


def _inlined(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with every elementwise intermediate computed where it is read."""
    sch = Schedule(func)
    written = tir.VarMap((param, True) for param in func.params)
    for block in blocks_in(sch.mod["main"].body):
        if block.name_hint == "root" or any(region.source in written for region in block.writes):
            continue
        try:
            sch.compute_inline(sch.get_sblock(block.name_hint))
        except ScheduleError:
            continue  # a reduction, or read by one: it keeps its buffer
    return sch.mod["main"]


def _unread(name: str, kind: relax.TensorType) -> Var:
    """A buffer for a parameter that the step does not read."""
    known = [tir.as_int(extent) for extent in kind.shape.values]
    shape = [tirx.Var("n", "int64") if n is None else tirx.IntImm("int64", n) for n in known]
    return tirx.decl_buffer(shape, str(kind.dtype), name=name, layout=None)


def time_loop(
    step: LoweredStep,
    *,
    length: int | None,
    carries: int,
    slices: int,
    prefix: bool = False,
    reverse: bool = False,
) -> tirx.PrimFunc:
    """Wrap a step in a loop over time.

    Parameters
    ----------
    step : LoweredStep
        Its parameters are the carries, then what is one step of an input, then what all steps
        share, its constants last; its results are the carries after the step, then what is emitted.
    length : int or None
        Number of steps; None is the leading extent of the inputs, which a call decides.
    carries, slices : int
        How many of each.
    prefix : bool
        The loop is a scan of an operator: the carries start as the first slices, one each, the
        step holds from step 1 on, and what is emitted is the carries.
    reverse : bool
        Scan from the last step to the first.

    Returns
    -------
    tirx.PrimFunc
        Parameters: the initial carries (none for a `prefix`), the inputs with time as their
        leading axis, what is shared; then the outputs: the final carries (none for a `prefix`),
        and what is emitted, with time as leading axis. Private, and opaque to fusion.
    """
    zero, time = tirx.IntImm("int64", 0), tirx.Var("t", "int64")
    extent = tirx.Var("length", "int64") if length is None else tirx.IntImm("int64", length)
    at = extent - 1 - time if reverse else time
    new, emits = step.outputs[:carries], step.outputs[carries:]
    lanes, shared = step.inputs[carries : carries + slices], step.inputs[carries + slices :]
    inits = [_like(b, f"init{i}") for i, b in enumerate(new)]
    states = [_like(b, f"carry{i}") for i, b in enumerate(new)]
    sliced = [_like(b, f"x{i}", extent) for i, b in enumerate(lanes)]
    emitted = [_like(b, f"y{i}", extent) for i, b in enumerate(new if prefix else emits)]
    # The results of a prefix's step are its carries alone.
    timed = tir.VarMap(zip((*lanes, *emits), (*sliced, *emitted), strict=not prefix))
    moved = tir.VarMap(zip(step.inputs[:carries], states, strict=True))
    held = []
    for old, after, state in zip(step.inputs, new, states, strict=False):
        if _can_write_in_place(step, old, after):
            moved[after] = state
        else:
            held.append((state, after))
    body = [_moved(nest, moved, timed, at) for nest in step.body]
    body += [_copy(state, [], after, []) for state, after in held]
    allocs = [*step.allocs, *(after for _, after in held)]
    if prefix:
        params = [*sliced, *shared, *emitted]
        allocs += states
        if held:
            first = [_copy(s, [], x, [at]) for s, x in zip(states, sliced, strict=True)]
            body = [tirx.IfThenElse(tirx.EQ(time, zero), tir.seq(first), tir.seq(body))]
        else:
            # A choice in each element leaves the lanes visible.
            pairs = tir.VarMap(zip(states, sliced, strict=True))
            body = [_first_from(nest, pairs, tirx.GT(time, zero), at) for nest in body]
        body += [_copy(y, [at], s, []) for y, s in zip(emitted, states, strict=True)]
        # Written ahead of time too, or TVM takes their memory to be of one step alone, and gives
        # it to what else the step allocates.
        start = [_filled(s) for s in states]
    else:
        params = [*inits, *sliced, *shared, *states, *emitted]
        start = [_copy(s, [], i, []) for s, i in zip(states, inits, strict=True)]
    loop = tirx.For(time, zero, extent, tirx.ForKind.SERIAL, tir.seq(body))
    whole = tir.seq([*(tirx.AllocBuffer(b) for b in allocs), *start, loop])
    attrs = {"tirx.noalias": True, "s_tir": True, OP_PATTERN: OPAQUE_PATTERN}
    # Some of TVM's passes want blocks, also in functions that they leave alone.
    return ensure_blocks(tirx.PrimFunc(params, whole).with_attrs(attrs))


def _like(buffer: Var, name: str, *lead: Any) -> Var:
    return tirx.decl_buffer(
        [*lead, *tir.shape_of(buffer)], tir.dtype_of(buffer), name=name, layout=None
    )


def _moved(nest: Any, moved: tir.VarMap, timed: tir.VarMap, at: Any) -> Any:
    """`nest` on other buffers: states, and with time as leading index inputs and emits."""

    def to(buffer: Var, indices: list[Any]) -> tuple[Var, list[Any]]:
        if buffer in timed:
            return timed[buffer], [at, *indices]
        return moved.get(buffer, buffer), indices

    return tir.map_accesses(nest, to)


def _first_from(nest: Any, sources: tir.VarMap, later: Any, at: Any) -> Any:
    """`nest` with each store to a state taken from its source unless `later`."""

    def on_store(store: BufferStore) -> Any:
        if store.buffer not in sources:
            return store
        first = tirx.BufferLoad(sources[store.buffer], [at, *store.indices])
        value = tirx.if_then_else(later, store.value, first)
        return BufferStore(store.buffer, value, store.indices)

    return tvm_ffi.structural_map(nest, (BufferStore, on_store))


def _copy(target: Var, lead: list[Any], source: Var, source_lead: list[Any]) -> Any:
    """``target[lead, ...] = source[source_lead, ...]``."""
    free = [None] * (len(tir.shape_of(target)) - len(lead))

    def loaded(at: list[Any]) -> Any:
        return tirx.BufferLoad(source, [*source_lead, *at[len(lead) :]])

    return tir.store_cells(target, [*lead, *free], loaded)


def _filled(target: Var) -> Any:
    indices = [None] * len(tir.shape_of(target))
    return tir.store_cells(target, indices, lambda _: tirx.const(0, tir.dtype_of(target)))


def _can_write_in_place(step: LoweredStep, old: Var, after: Var) -> bool:
    """Return whether the new carry may overwrite the old one while it is computed.

    So it is if one nest writes it elementwise, reads the old one only where it writes, and no
    later nest reads the old one.
    """
    writers = [i for i, nest in enumerate(step.body) if after in tir.buffers_stored(nest)]
    if len(writers) != 1:
        return False
    store, loops = point_store(step.body[writers[0]])
    if store is None:
        return False
    if any(old in tir.buffers_loaded(later) for later in step.body[writers[0] + 1 :]):
        return False
    return all(
        is_point(load.indices, loops) for load in tir.loads(store.value) if load.source.same_as(old)
    )
