"""Functions that compute each element of their output from elements at known indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.expr import TensorLoad
from tvm.s_tir import renew_defs

from tvm_scan import tir
from tvm_scan.extraction import root_nests
from tvm_scan.extraction.extents import runs_through
from tvm_scan.extraction.flatten import flatten
from tvm_scan.extraction.statements import Loop, Store, without_allocs
from tvm_scan.recurrence import Refusal


@dataclass(frozen=True, eq=False)
class Pointwise:
    """``output[axes] = value``, with nothing carried from cell to cell.

    Attributes
    ----------
    inputs : tuple of Var
        Buffers that are read, as the function declares them.
    output : Var
        The buffer that is written, all of it.
    axes : tuple of Var or None
        One variable for each dimension of the output; None where its extent is 1.
    value : Expr
        Over loads of the inputs and the variables of ``axes``.
    """

    inputs: tuple[Var, ...]
    output: Var
    axes: tuple[Var | None, ...]
    value: Any

    def at(self, indices: list[Any]) -> Any:
        """The value at one cell."""
        table = tir.VarMap()
        for var, index in zip(self.axes, indices, strict=True):
            if var is not None:
                same = tir.dtype_of(index) == tir.dtype_of(var)
                table[var] = index if same else tirx.Cast(tir.dtype_of(var), index)
        return tir.map_loads(tir.substitute(self.value, table), _with_plain_indices)

    @property
    def strays(self) -> list[int]:
        """Inputs that are read in another order than the output's: permuted, cut or reshaped."""
        loads = [load for load in tir.loads(self.value) if not _in_order(load, self.axes)]
        sources = tir.VarMap((load.source, True) for load in loads)
        return [i for i, buffer in enumerate(self.inputs) if buffer in sources]

    @property
    def is_costly(self) -> bool:
        """Return whether it is worth keeping rather than computing again: it calls a function."""
        costly = tir.nodes(self.value, Call, tirx.Div)
        return any(tir.call_name(node) != "prim.if_then_else" for node in costly)


def _with_plain_indices(load: TensorLoad) -> Any:
    """A load by the indices themselves where they were only widened: it is the element stored."""
    indices = [i.value if _is_widened(i) else i for i in load.indices]
    return load.source[tuple(indices)] if any(map(_is_widened, load.indices)) else load


def _is_widened(index: Any) -> bool:
    if not isinstance(index, tirx.Cast):
        return False
    return (tir.dtype_of(index.value), tir.dtype_of(index)) == ("int32", "int64")


def pointwise(func: tirx.PrimFunc) -> Pointwise | None:
    """Recognise a function of one output whose elements are independent.

    Theorem. A perfect nest of loops over all of a buffer, with one store to the cell that the
    loops name, computes a function of its indices, if what it reads is not written by it. A later
    nest that reads an earlier one at a cell computes the composition there.

    Parameters
    ----------
    func : tirx.PrimFunc
        The last parameter is the output.

    Returns
    -------
    Pointwise or None
        None for every other function. Inputs may be read anywhere; ``strays`` are those whose
        reader would pass memory otherwise than the function does.
    """
    func = renew_defs(func)
    *inputs, output = func.params
    known = tir.VarMap()
    part = None
    for nest in root_nests(func):
        tree = flatten(func, nest)
        part = None if isinstance(tree, Refusal) else _of_nest(tree.body, tuple(inputs), known)
        if part is None or part.output in known:
            return None
        known[part.output] = part
    if part is None or not part.output.same_as(output):
        return None
    is_input = tir.VarMap((buffer, True) for buffer in inputs)
    return part if all(load.source in is_input for load in tir.loads(part.value)) else None


def composed(
    outer: Pointwise, inner: Pointwise, at: int, shared: Sequence[int | None]
) -> Pointwise:
    """Compute an input of a function where the function reads it.

    Parameters
    ----------
    outer, inner : Pointwise
        The input ``at`` of ``outer`` is what ``inner`` computes, of the same shape.
    at : int
        Which input.
    shared : sequence of int or None
        For each input of ``inner``, the input of ``outer`` that holds the same array.

    Returns
    -------
    Pointwise
        Of the inputs of ``outer`` without ``at``, then those of ``inner`` that it lacked.
    """
    old = outer.inputs[at]
    names = tir.VarMap(
        (b, outer.inputs[k]) for b, k in zip(inner.inputs, shared, strict=True) if k is not None
    )
    part = Pointwise(inner.inputs, old, inner.axes, tir.substitute(inner.value, names))

    def on_load(load: Any) -> Any:
        return part.at(list(load.indices)) if load.source.same_as(old) else load

    value = tir.map_loads(outer.value, on_load)
    added = [b for b, k in zip(inner.inputs, shared, strict=True) if k is None]
    others = [b for b in outer.inputs if not b.same_as(old)]
    return _tidy(Pointwise((*others, *added), outer.output, outer.axes, value))


def _of_nest(stmts: list[Any], inputs: tuple[Var, ...], known: tir.VarMap) -> Pointwise | None:
    """The pointwise function of a nest."""
    loops = []
    while len(real := without_allocs(stmts)) == 1 and isinstance(real[0], Loop):
        loops.append(real[0])
        stmts = real[0].body
    if len(real) != 1 or not isinstance(real[0], Store) or any(loop.thread for loop in loops):
        return None
    store = real[0]
    extents = tir.VarMap((loop.var, loop.extent) for loop in loops)
    axes: list[Var | None] = []
    units = tir.VarMap((v, tir.zero_like(v)) for v, n in extents.items() if tir.as_int(n) == 1)
    for index, extent in zip(store.indices, tir.shape_of(store.buffer), strict=True):
        if isinstance(index, Var) and index in units:
            index = units[index]
        if isinstance(index, Var) and index in extents:
            if any(index.same_as(var) for var in axes if var is not None):
                return None
            if not runs_through(extents[index], extent):
                return None
            axes.append(index)
        elif tir.as_int(index) == 0 and tir.as_int(extent) == 1:
            axes.append(None)
        else:
            return None
    if len(loops) - len(units) != sum(var is not None for var in axes):
        return None
    if any(load.source.same_as(store.buffer) for load in tir.loads(store.value)):
        return None

    def earlier(load: Any) -> Any:
        source = known.get(load.source)
        return load if source is None else source.at(list(load.indices))

    value = tir.map_loads(tir.substitute(store.value, units), earlier)
    return _tidy(Pointwise(inputs, store.buffer, tuple(axes), value))


def _tidy(part: Pointwise) -> Pointwise:
    """Indices without the divisions of reshapes that the extents of the axes decide."""
    shape = tir.shape_of(part.output)
    ranges = [(v, n) for v, n in zip(part.axes, shape, strict=True) if v is not None]

    def on_load(load: Any) -> Any:
        sizes = tir.shape_of(load.source)
        indices = [
            tir.zero_like(index) if tir.as_int(extent) == 1 else tir.simplify(index, ranges)
            for index, extent in zip(load.indices, sizes, strict=True)
        ]
        return tirx.BufferLoad(load.source, indices)

    return replace(part, value=tir.map_loads(part.value, on_load))


def _in_order(load: Any, axes: tuple[Var | None, ...]) -> bool:
    """Return whether a load passes memory in the order of the axes, some of which it reads at."""
    rest = [var for var in axes if var is not None]
    for index in load.indices:
        if tir.as_int(index) is not None:
            continue
        while rest and not (isinstance(index, Var) and rest[0].same_as(index)):
            rest.pop(0)
        if not rest:
            return False
        rest.pop(0)
    return True
