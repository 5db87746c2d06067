"""The role of each written buffer of a nest, and the register array that will stand for it.

An index into a written buffer is split as ``c t + base(lane) + offset + varying(inner loops)``.

Theorem (registers). Let all accesses of a buffer ``W`` share ``c`` and ``base`` and differ only
in constants and inner loop variables, and let the map from lanes to ``base`` be injective and
disjoint under the range of the varying part. Then the cells that one lane touches at one step
form a small box that no other lane touches; a register array of that box may stand for them.
With ``c = 0`` in every dimension the box is the same at each step: ``W`` is an in-place state,
or scratch. With ``c != 0`` in one dimension it moves: ``W`` is a history, and an access at
offset ``-k c`` there reads what step ``t - k`` wrote.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Range, Var
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.extraction.accesses import Access, accesses_of
from tvm_scan.extraction.disjoint import lanes_apart
from tvm_scan.extraction.extents import last_of
from tvm_scan.extraction.layouts import Box, Layouts, Split
from tvm_scan.extraction.misfits import misfit
from tvm_scan.extraction.nest import Nest, linear_in
from tvm_scan.extraction.statements import stores_in
from tvm_scan.recurrence import Refusal, RefusalKind, Register
from tvm_scan.text import as_text

_MAX_REGISTERS = 1024
#: Steps that a read may lie back: elements of order k hold k (k + 1) numbers.
_MAX_LAG = 4


def classify_accesses(nest: Nest, external: tir.VarMap, written: list[Var]) -> Layouts | Refusal:
    """Find the box of every written buffer and check the theorem above.

    Parameters
    ----------
    nest : Nest
        Lanes, time loop and surroundings.
    external : VarMap
        Buffers that are parameters, or used outside the nest.
    written : list of Var
        Buffers that the nest writes.
    """
    layouts = Layouts(nest, external)
    inside = accesses_of(nest.time.body)
    around = accesses_of(nest.before), accesses_of(nest.after)
    for buffer in written:
        stores = _stores(buffer, inside)
        refusal = _box(stores[0], layouts) if stores else None
        if not stores:
            _box_around(_stores(buffer, around[0] + around[1])[0], layouts)
        if refusal is None:
            refusal = _extend(buffer, inside, layouts)
        for accesses, last in zip(around, (False, True), strict=True):
            if refusal is None:
                refusal = _check_around(buffer, accesses, layouts, last)
        if refusal is None:
            refusal = _check_injective(buffer, layouts)
        if refusal is not None:
            return refusal
    for buffer, box in layouts.boxes.items():
        layouts.registers[buffer] = _register(box, external)
    return layouts


def _stores(buffer: Var, accesses: list[Access]) -> list[Access]:
    return [a for a in accesses if a.is_store and a.buffer.same_as(buffer)]


def _box(first: Access, layouts: Layouts) -> Refusal | None:
    buffer, base = first.buffer, list[Any]()
    time_dim, time_step = None, 0
    zero = tir.VarMap((loop.var, tir.zero_like(loop.var)) for loop in first.inner)
    for dim, index in enumerate(first.indices):
        part = linear_in(index, layouts.nest.time.var)
        if part is None or tir.loads(index) or tir.contains_var(index, layouts.bound.keys()):
            return Refusal(
                RefusalKind.VARYING_LAG,
                first.origin,
                f"expected {buffer.name} to be written at an index that moves with "
                f"{layouts.nest.time.var.name} by a constant, found {as_text(index)}",
                "step through time by a constant stride, forwards or backwards",
            )
        if part[0] != 0 and time_dim is not None:
            return Refusal(
                RefusalKind.VARYING_LAG,
                first.origin,
                f"expected time in one dimension of {buffer.name}, found it in several",
                "give the history one time dimension",
            )
        if part[0] != 0:
            time_dim, time_step = dim, part[0]
        base.append(tir.substitute(part[1], zero))
    layouts.boxes[buffer] = Box(buffer, base, time_dim, time_step, [0] * len(base), [0] * len(base))
    return None


def _box_around(first: Access, layouts: Layouts) -> None:
    zero = tir.VarMap((loop.var, tir.zero_like(loop.var)) for loop in first.inner)
    base = [tir.substitute(index, zero) for index in first.indices]
    layouts.boxes[first.buffer] = Box(first.buffer, base, None, 0, [0] * len(base), [0] * len(base))


def _extend(buffer: Var, accesses: list[Access], layouts: Layouts) -> Refusal | None:
    """Widen the box by every access inside time; refuse what does not fit the theorem."""
    box: Box = layouts.boxes[buffer]
    for access in accesses:
        if not access.buffer.same_as(buffer):
            continue
        split = layouts.split(buffer, access.indices, access.inner)
        if split is None:
            return misfit(access, layouts)
        if access.is_store and split.lag != 0:
            return Refusal(
                RefusalKind.VARYING_LAG,
                access.origin,
                f"expected every store of {buffer.name} at one time index per step, found "
                f"stores {abs(split.lag)} step(s) apart",
                "write each step's value once",
            )
        if split.lag < 0:
            return Refusal(
                RefusalKind.FUTURE_READ,
                access.origin,
                f"expected reads of {buffer.name} from earlier steps, found a read of step "
                f"t+{-split.lag}, which is written later",
                "run time in the other direction, or read the input instead of the output",
            )
        if split.lag > _MAX_LAG:
            return Refusal(
                RefusalKind.UNSUPPORTED_LAG,
                access.origin,
                f"expected reads of {buffer.name} at most {_MAX_LAG} steps back, found lag "
                f"{split.lag}",
                "if only every k-th step is read, make the residue modulo k a lane: scan "
                "h[k * s + r] over s",
            )
        box.lags = max(box.lags, split.lag)
        refusal = _widen(box, split, access)
        if refusal is not None:
            return refusal
    return None


def _widen(box: Box, split: Split, access: Access) -> Refusal | None:
    analyzer = Analyzer()
    for loop in access.inner:
        zero = tirx.IntImm(tir.dtype_of(loop.var), 0)
        analyzer.bind(loop.var, Range.from_min_extent(zero, loop.extent))
    for dim, offset in enumerate(split.offsets):
        bound = analyzer.const_int_bound(offset)
        low, high = int(bound.min_value), int(bound.max_value)
        if high - low > _MAX_REGISTERS:
            return Refusal(
                RefusalKind.UNSUPPORTED_BODY,
                access.origin,
                f"expected at most {_MAX_REGISTERS} cells of {box.buffer.name} per lane and step, "
                "with constant extents; found a larger or symbolic range",
                "make the loop around it a lane by indexing every written buffer with it",
            )
        box.lower[dim] = min(box.lower[dim], low)
        box.upper[dim] = max(box.upper[dim], high)
    return None


def _check_around(
    buffer: Var, accesses: list[Access], layouts: Layouts, last: bool
) -> Refusal | None:
    """Accesses before (after) time must meet the cell before the first (of the last) step."""
    box: Box = layouts.boxes[buffer]
    time = layouts.nest.time
    step = last_of(time.extent) if last else tirx.IntImm(tir.dtype_of(time.var), -1)
    for access in accesses:
        if not access.buffer.same_as(buffer):
            continue
        indices = list(access.indices)
        if box.time_dim is not None:
            expected = box.base[box.time_dim] + step * box.time_step
            index = indices[box.time_dim]
            back = layouts.steps_back(buffer, index, step)
            if back is None or not 0 <= back < max(box.lags, 1):
                return Refusal(
                    RefusalKind.CROSS_LANE if last else RefusalKind.NO_INITIAL_STATE,
                    access.origin,
                    f"expected {buffer.name} {'after' if last else 'before'} the time loop at "
                    f"index {as_text(tir.simplify(expected))} of its time dimension, found "
                    f"{as_text(index)}",
                    "read only the last step after the loop; write only the initial state before",
                )
            indices[box.time_dim] = box.base[box.time_dim] + time.var * box.time_step
        split = layouts.split(buffer, indices, access.inner)
        if split is None:
            return misfit(access, layouts)
        refusal = _widen(box, split, access)
        if refusal is not None:
            return refusal
    return None


def _check_injective(buffer: Var, layouts: Layouts) -> Refusal | None:
    """Lanes must own disjoint cells, over all of time, of every buffer that outlives them."""
    if buffer not in layouts.external and not _shared(buffer, layouts):
        return None
    nest, box = layouts.nest, layouts.boxes[buffer]
    if lanes_apart(buffer, layouts):
        return None
    return Refusal(
        RefusalKind.CROSS_LANE,
        _store_of(buffer, nest),
        f"expected each lane to own its cells of {buffer.name}, but the index "
        f"[{', '.join(map(as_text, box.base))}] is not provably one-to-one over the lanes "
        f"{', '.join(lane.var.name for lane in nest.lanes)}",
        "index every written buffer with every lane variable",
    )


def _store_of(buffer: Var, nest: Nest) -> Any:
    """The user's first store to ``buffer`` in the time loop, else the time loop."""
    for store in stores_in(nest.time.body):
        if store.buffer.same_as(buffer):
            return store.origin
    return nest.time.origin


def _shared(buffer: Var, layouts: Layouts) -> bool:
    """Return whether a buffer that nothing outside sees still has a cell per lane."""
    return any(
        tir.contains_var(base, [lane.var for lane in layouts.nest.lanes])
        for base in layouts.boxes[buffer].base
    )


def _register(box: Box, external: tir.VarMap) -> Register:
    dtype = tir.wide_dtype(tir.dtype_of(box.buffer))
    extents = box.extents
    name = str(box.buffer.name)
    local = tirx.decl_buffer(extents, dtype, f"{name}_reg", scope="local")
    suffixes = ["_old", *(f"_old{lag}" for lag in range(2, box.lags + 1))]
    previous = tuple(
        tirx.decl_buffer(extents, dtype, f"{name}{suffix}", scope="local")
        for suffix in suffixes[: box.lags]
    )
    return Register(
        buffer=box.buffer,
        local=local,
        previous=previous,
        base=tuple(box.base),
        extents=tuple(extents),
        lower=tuple(box.lower),
        timed=box.time_dim is not None,
        visible=box.buffer in external,
    )
