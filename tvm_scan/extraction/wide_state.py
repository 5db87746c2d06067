"""Halves of a delta rule: read once before time, kept in float32, rounded once where stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.delta_rule import Written
from tvm_scan.extraction.halves import with_wide_stores
from tvm_scan.extraction.matrix_state import MatrixState
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.statements import stores_in


@dataclass(frozen=True, eq=False)
class WideNest:
    """A nest over buffers of float32 in place of what it stores as halves.

    Attributes
    ----------
    nest : Nest
        The nest.
    halves : VarMap
        For each buffer of float32 the one that is in memory.
    external : VarMap
        Buffers that are seen outside the nest, and those that stand for such.
    """

    nest: Nest
    halves: tir.VarMap
    external: tir.VarMap

    def in_memory(self, buffer: Var) -> Var:
        """The buffer that a function sees."""
        return self.halves.get(buffer, buffer)

    def before_time(self, matrix: MatrixState) -> Any:
        """A cell of a state that memory holds as halves."""
        return tirx.Cast("float32", tirx.BufferLoad(self.halves[matrix.buffer], matrix.indices))

    def rounded(self, store: Written) -> Written:
        """A store, which rounds where memory is of halves."""
        if store.buffer not in self.halves:
            return store
        half = self.halves[store.buffer]
        return Written(half, store.index, tirx.Cast(tir.dtype_of(half), store.value))


def widened(nest: Nest, external: tir.VarMap) -> WideNest:
    """Put buffers of float32 in place of every one that a nest stores to as halves.

    Parameters
    ----------
    nest : Nest
        The nest.
    external : VarMap
        Buffers that are seen outside the nest.
    """
    wide, halves, names = tir.VarMap(), tir.VarMap(), tir.VarMap()
    for store in stores_in([*nest.before, nest.time, *nest.after]):
        buffer = store.buffer
        if tir.is_half(tir.dtype_of(buffer)) and buffer not in wide:
            wide[buffer] = tirx.decl_buffer(tir.shape_of(buffer), "float32", buffer.name)
            halves[wide[buffer]] = buffer
    if not len(wide):
        return WideNest(nest, halves, external)
    before = with_wide_stores(nest.before, wide, names)
    time = replace(nest.time, body=with_wide_stores(nest.time.body, wide, names))
    after = with_wide_stores(nest.after, wide, names)
    seen = [(float32, True) for float32, half in halves.items() if half in external]
    return WideNest(
        replace(nest, before=before, time=time, after=after),
        halves,
        tir.VarMap([*external.items(), *seen]),
    )
