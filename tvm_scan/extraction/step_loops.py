"""The use that the loops of a step make of a buffer: cells of their own, a sum, or neither."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.extraction.accesses import accesses_of
from tvm_scan.extraction.statements import Loop, Store, stores_in


class NotUnderstood(Exception):
    """A statement that is none of the theorem's cases; a ``fix`` says more than the theorem's."""

    def __init__(self, detail: str, origin: Any = None, fix: str = "") -> None:
        super().__init__(detail)
        self.detail, self.origin, self.fix = detail, origin, fix


def loop_of(index: Any, loops: list[Loop]) -> Loop | None:
    """The one of ``loops`` whose bare variable ``index`` is."""
    if not isinstance(index, Var):
        return None
    return next((l for l in loops if index.same_as(l.var)), None)


def has_loop(buffer: Var, loop: Loop) -> bool:
    """Return whether a store to ``buffer`` inside of ``loop`` has its variable in the index."""
    return any(
        store.buffer.same_as(buffer) and tir.contains_var(store.indices, [loop.var])
        for store in stores_in(loop.body)
    )


def check_own(buffer: Var, loop: Loop) -> None:
    """Every access to ``buffer`` has the bare loop variable in the same dimension."""
    dims: set[int] = set()
    for access in accesses_of(loop.body):
        if not access.buffer.same_as(buffer):
            continue
        dimensions = {d for d, i in enumerate(access.indices) if loop_of(i, [loop]) is not None}
        dims = dimensions if not dims else dims & dimensions
        if not dims:
            raise NotUnderstood(
                f"{buffer.name} read or stored at another {loop.var.name} than the loop's own",
                access.origin,
            )


def is_sum(buffer: Var, loop: Loop) -> bool:
    """Return whether ``loop`` only adds to ``buffer``, in one store."""
    accesses = [a for a in accesses_of(loop.body) if a.buffer.same_as(buffer)]
    stores = [s for s in stores_in(loop.body) if s.buffer.same_as(buffer)]
    return len(stores) == 1 and len(accesses) == 2 and addend(stores[0]) is not None


def addend(store: Store) -> Any | None:
    """``e`` of ``B[i] = B[i] + e``, where ``e`` does not read B."""
    value = store.value
    if not isinstance(value, tirx.Add):
        return None
    for dimensions, rest in ((value.a, value.b), (value.b, value.a)):
        if isinstance(dimensions, TensorLoad) and dimensions.source.same_as(store.buffer):
            same = tir.structurally_equal(dimensions.indices, store.indices)
            if same and not any(l.source.same_as(store.buffer) for l in tir.loads(rest)):
                return rest
    return None
