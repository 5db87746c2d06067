"""The part of a step that the states need: a walk reduces a chunk of time to its elements.

Theorem. Let every store of the loops over the states be affine in the cell that it writes,
``h = a h + b`` with ``a`` and ``b`` free of the states. Then many steps are ``h = A h + B``, where
``B`` is what the loops make of ``h = 0``, and ``A`` the product of all ``a``. Neither needs the
sums over the states, nor what the step does after them, nor what it does before them only for
these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra.affine import Affine, coefficients
from tvm_scan.algebra.base import NotInFamily
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import int_const, local
from tvm_scan.schedules.common.state_split import NoSplit, StateSplit, split_of, statements


@dataclass(frozen=True, eq=False)
class StateReduction:
    """A step that reduces.

    Attributes
    ----------
    split : StateSplit
        The loops over the states with the products, and what these need before them.
    products : VarMap
        For every register array of the state, that of the products of its gates.
    gates : tuple of Var
        Registers for the gate of one state and step.
    """

    split: StateSplit
    products: tir.VarMap
    gates: tuple[Var, ...]


@lru_cache(maxsize=64)
def reduction_of(recurrence: Recurrence) -> StateReduction | NoSplit:
    """The reduction of a step whose states are split, or why there is none."""
    try:
        return _reduction(recurrence)
    except NoSplit as failure:
        return failure


def _reduction(recurrence: Recurrence) -> StateReduction:
    split = split_of(recurrence)
    if isinstance(split, NoSplit):
        raise split
    if recurrence.levels != 1 or not all(isinstance(a, Affine) for a in recurrence.algebras):
        raise NoSplit("states that are not affine in themselves alone")
    products, dims = tir.VarMap(), split.dims.copy()
    for old, dim in split.dims.items():
        shape = [int(extent) for extent in tir.shape_of(old)]
        products[old] = local(f"{old.name}_gates", shape, tir.dtype_of(old))
        dims[products[old]] = dim
    gates: list[Var] = []
    loops = []
    for loop in split.loops:
        stores = [s for s in statements(loop.body) if s.buffer in split.dims]
        if stores:
            body = [part for s in stores for part in _extended(s, split, products, gates)]
            loops.append(tir.loop_with(loop, tir.seq(body)))
    before = _needed(split.before, loops)
    reduced = StateSplit(split.states, dims, before, tuple(loops), (), ())
    return StateReduction(reduced, products, tuple(gates))


def _extended(
    store: tirx.BufferStore, split: StateSplit, products: tir.VarMap, gates: list[Var]
) -> list[Any]:
    """The product of the gates, and the state, after a store."""
    buffer, indices = store.buffer, list(store.indices)
    dtype = tir.dtype_of(buffer)
    old = tirx.Var("h", dtype)

    def on_load(load: Any) -> Any:
        return old if load.source.same_as(buffer) else load

    parts = coefficients(tir.map_loads(store.value, on_load), old)
    if isinstance(parts, NotInFamily):
        raise NoSplit(f"a state whose step is not affine: {parts.reason}")
    gate, offset = parts
    if any(b in split.dims for part in parts for b in _loaded(part)):
        raise NoSplit("a state whose step depends on another one")
    state = tirx.BufferLoad(buffer, indices)
    if gate is None:
        return [] if offset is None else [tirx.BufferStore(buffer, state + offset, indices)]
    # In a register of its own, so that an exponential is computed once for both.
    register = local(f"{buffer.name}_gate", [1], dtype)
    gates.append(register)
    zero = [int_const(0, "int32")]
    factor = tirx.BufferLoad(register, zero)
    value = factor * state if offset is None else factor * state + offset
    product = products[buffer]
    return [
        tirx.BufferStore(register, gate, zero),
        tirx.BufferStore(product, factor * tirx.BufferLoad(product, indices), indices),
        tirx.BufferStore(buffer, value, indices),
    ]


def _loaded(part: Any) -> list[Var]:
    return [] if part is None else list(tir.buffers_loaded(part).keys())


def _needed(before: tuple[Any, ...], loops: list[tirx.For]) -> tuple[Any, ...]:
    """The statements on which the loops depend, in order."""
    wanted = tir.buffers_loaded(tir.seq(loops))
    needed: list[Any] = []
    for stmt in reversed(before):
        if any(b in wanted for b in tir.buffers_stored(stmt).keys()):
            needed.append(stmt)
            for buffer in tir.buffers_loaded(stmt).keys():
                wanted[buffer] = True
    return tuple(reversed(needed))
