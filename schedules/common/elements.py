"""Storage of elements: one buffer per part of every group's element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import int_const, local


class Elements:
    """Storage for one element of every group of a level, ``lead`` times.

    Parameters
    ----------
    recurrence : Recurrence
        Whose elements.
    name : str
        Prefix of the buffer names.
    lead : sequence of Expr
        Leading extents (threads of a block, chunks of a row).
    scope : str
        Storage scope.
    level : int
        Whose groups.
    layout : callable, optional
        ``layout(i, dtype)``: where in a part of this dtype the element lies whose last leading
        index is ``i``, if not at ``i``.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        name: str,
        lead: Sequence[Any],
        scope: str,
        level: int = 0,
        layout: Callable[[Any, str], Any] | None = None,
    ) -> None:
        self.level, self._layout = level, layout
        self.parts: dict[int, list[Var]] = {}
        self.state_first = scope.startswith("shared")
        for i, group in enumerate(recurrence.groups):
            if group.level != level:
                continue
            states = [int(axis.extent) for axis in recurrence.state_axes(group)]
            # In shared memory the threads are the fastest dimension: neighbours hit
            # neighbouring banks, whatever the number of states.
            self.parts[i] = [
                local(f"{name}{i}{_letter(j)}", self._shape(lead, states, dtype), dtype, scope)
                for j, dtype in enumerate(group.algebra.dtypes)
            ]

    @classmethod
    def of_levels(
        cls,
        recurrence: Recurrence,
        name: str,
        lead: Sequence[Any],
        scope: str,
        layout: Callable[[Any, str], Any] | None = None,
    ) -> list[Elements]:
        """Storage for the elements of every level."""
        levels = range(recurrence.levels)
        return [cls(recurrence, name, lead, scope, level, layout) for level in levels]

    @property
    def buffers(self) -> list[Var]:
        """All buffers."""
        return [buffer for parts in self.parts.values() for buffer in parts]

    def _shape(self, lead: Sequence[Any], states: Sequence[int], dtype: str) -> list[Any]:
        if self._layout is not None:
            *outer, last = lead
            lead = [*outer, self._layout(last - 1, dtype) + 1]
        return [*states, *lead] if self.state_first else [*lead, *states]

    def _index(self, lead: Sequence[Any], cell: Sequence[Any], dtype: str) -> list[Any]:
        if self._layout is not None:
            *outer, last = lead
            lead = [*outer, self._layout(last, dtype)]
        index = [*cell, *lead] if self.state_first else [*lead, *cell]
        return index or [int_const(0, "int32")]

    def _targets(
        self, group: int, lead: Sequence[Any], cell: Sequence[Any]
    ) -> list[tuple[Var, list[Any]]]:
        return [(b, self._index(lead, cell, tir.dtype_of(b))) for b in self.parts[group]]

    def load(self, group: int, lead: Sequence[Any], cell: Sequence[Any]) -> tuple[Any, ...]:
        """Element of one cell of a group."""
        return tuple(tirx.BufferLoad(*target) for target in self._targets(group, lead, cell))

    def store(
        self, group: int, lead: Sequence[Any], cell: Sequence[Any], element: Sequence[Any]
    ) -> Any:
        """Store an element, whose parts may be computed from what the cell held."""
        return store_all(self._targets(group, lead, cell), element)


def store_all(targets: Sequence[tuple[Var, Sequence[Any]]], values: Sequence[Any]) -> Any:
    """``target = value`` for all at once, whatever values are computed from the targets."""
    order = _write_order([buffer for buffer, _ in targets], values)
    if order is not None:
        return tir.seq([tirx.BufferStore(targets[j][0], values[j], targets[j][1]) for j in order])
    names = [tirx.Var(f"e{j}", tir.dtype_of(value)) for j, value in enumerate(values)]
    binds = [tirx.Bind(name, value) for name, value in zip(names, values, strict=True)]
    stores = [
        tirx.BufferStore(buffer, name, index)
        for (buffer, index), name in zip(targets, names, strict=True)
    ]
    return tir.seq([*binds, *stores])


def _letter(part: int) -> str:
    """``a`` to ``z``, then ``a1`` and so on."""
    return chr(ord("a") + part % 26) + (str(part // 26) if part >= 26 else "")


def _write_order(parts: Sequence[Var], element: Sequence[Any]) -> list[int] | None:
    """Order in which no part is written before another one that is computed from it.

    None where they depend on each other in a circle. Where there is an order, no value needs a
    name, and TVM's pass that legalises bfloat16 overlooks values that have one.
    """
    loads = [tir.buffers_loaded(value) for value in element]
    left = list(range(len(parts)))
    order: list[int] = []
    while left:
        free = [i for i in left if not any(parts[i] in loads[j] for j in left if j != i)]
        if not free:
            return None
        order.append(free[0])
        left.remove(free[0])
    return order
