"""Loads and stores of 128 bits: which accesses of a step move by whole vectors with time.

Theorem. Let the last index of an access be ``t + c`` (or ``c - t``), its other indices free of
``t``, the buffer's rows a multiple of ``v`` elements long, ``c`` (or ``c + 1``) a multiple of
``v``, and the number of steps too. Then the steps ``v k .. v k + v - 1`` access ``v`` neighbours
that begin at a multiple of ``v`` elements, and all of them exist or none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import int_const

_BYTES = 16
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "uint32", "int64", "uint64")


@dataclass(frozen=True)
class VectorAccess:
    """The map from the steps of a thread to vectors of one access.

    Attributes
    ----------
    lanes : int
        Elements of a vector; 1 for an access that has none.
    forward : bool
        Whether memory is read upwards in time.
    """

    lanes: int = 1
    forward: bool = True

    def slot(self, item: Any) -> Any:
        """Index of a thread's item in registers that hold memory's order within a vector."""
        if self.lanes == 1 or self.forward:
            return item
        last = self.lanes - 1
        return item - item % self.lanes + last - item % self.lanes

    def ramp(self, indices: list[Any]) -> list[Any]:
        """Indices of the vector, given those of the first of its steps."""
        *outer, last = indices
        one = int_const(1, last)
        if not self.forward:
            last = last - (self.lanes - 1)
        return [*outer, tirx.Ramp(last, one, self.lanes)]


def vector_access(
    buffer: Var, indices: list[Any], recurrence: Recurrence, items: int
) -> VectorAccess:
    """The widest vectors that an access allows.

    Parameters
    ----------
    buffer : Var
        What is accessed.
    indices : list of Expr
        Where, over the lanes and the time variable.
    recurrence : Recurrence
        Gives the time axis.
    items : int
        Consecutive steps of a thread.

    Returns
    -------
    VectorAccess
        Of one lane where there are no vectors.
    """
    time, dtype = recurrence.time, tir.dtype_of(buffer)
    length, row = tir.as_int(time.extent), tir.as_int(tir.shape_of(buffer)[-1])
    part = linear_in(indices[-1], time.var)
    moves = any(tir.contains_var(index, [time.var]) for index in indices[:-1])
    if length is None or row is None or part is None or moves or dtype not in _DTYPES:
        return VectorAccess()
    forward, offset = part[0] == 1, tir.as_int(tir.simplify(part[1]))
    if part[0] not in (1, -1) or offset is None:
        return VectorAccess()
    first = offset if forward else offset + 1
    lanes = _BYTES // tir.byte_size(dtype)
    while lanes > 1 and any(n % lanes for n in (items, length, row, first)):
        lanes //= 2
    return VectorAccess(lanes, forward)


def steady_stores(recurrence: Recurrence) -> list[tirx.BufferStore]:
    """Stores to outputs that every step makes once, to a buffer that it does nothing else with."""
    body, finish = recurrence.body, recurrence.finish
    counts = Counter(hash(store.buffer) for store in tir.nodes(body, tirx.BufferStore))
    used = tir.buffers_loaded(body).keys()
    if finish is not None:
        used += [*tir.buffers_stored(finish).keys(), *tir.buffers_loaded(finish).keys()]
    other = tir.VarMap((buffer, True) for buffer in used)
    return [
        store
        for store in tir.nodes(
            body, tirx.BufferStore, outside=(tirx.IfThenElse, tirx.For, tirx.While)
        )
        if str(store.buffer.scope()) != "local"
        and counts[hash(store.buffer)] == 1
        and store.buffer not in other
    ]


@lru_cache(maxsize=64)
def has_vectors(recurrence: Recurrence, items: int = 8) -> bool:
    """Return whether any store of a step moves by vectors; most loads beside it do as well."""
    return any(
        vector_access(s.buffer, list(s.indices), recurrence, items).lanes > 1
        for s in steady_stores(recurrence)
    )
