"""Groups of carries that must be scanned together, in the order in which they feed one another.

Theorem (levels). Let the step of a carry depend on carries of other groups only as they were
before the step. Once those are known at the head of every chunk, replaying them through the
chunk makes them inputs, and the carry is a recurrence of its own. Groups are the strongly
connected components of "feeds", so that the levels are well founded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.extraction.cells import Cell
from tvm_scan.extraction.layouts import Layouts
from tvm_scan.extraction.nest import Nest
from tvm_scan.extraction.symbolic import StepState
from tvm_scan.recurrence import Axis, Refusal, RefusalKind


@dataclass(eq=False)
class Draft:
    """A carry on its way: its cell, its step over befores, and the cells that feed it."""

    cell: Cell
    step: Any
    origin: Any
    axes: list[Axis]
    feeds: set[int]


def draft_steps(nest: Nest, layouts: Layouts, state: StepState) -> list[Draft] | Refusal:
    """Step of every carried cell, refused where it is not an expression of known values.

    Parameters
    ----------
    nest : Nest
        The loop nest.
    layouts : Layouts
        The boxes of its written buffers.
    state : StepState
        One executed step.

    Returns
    -------
    list of Draft or Refusal
        ``feeds`` holds the positions of the cells that a step reads, its own left out unless it
        reads another cell of itself.
    """
    cells = list(state.cells.values())
    drafts: list[Draft] = []
    for number, cell in enumerate(cells):
        drafted = _step(cell, nest, state)
        if isinstance(drafted, Refusal):
            return drafted
        step, origin = drafted
        step = state.resolve(step, cell)
        feeds = {
            i
            for load in tir.loads(step)
            for i, other in enumerate(cells)
            if load.source.same_as(other.before) and _may_meet(load, other)
        }
        extents = layouts.registers[cell.buffer].extents
        axes = [
            Axis(state.state_var(cell.buffer, dim), extents[dim])
            for dim, key in enumerate(cell.key)
            if key == "s"
        ]
        if number in feeds:
            return _coupled(cell, origin, f"another cell of {cell.buffer.name}")
        drafts.append(Draft(cell, step, origin, axes, feeds))
    return drafts


def _may_meet(load: Any, cell: Cell) -> bool:
    """Return whether ``load`` of the cell's buffer may be of one of the cell's indices."""
    for index, key in zip(load.indices, cell.key, strict=True):
        constant = tir.as_int(index)
        if key != "s" and constant is not None and constant != key:
            return False
    return True


def _step(cell: Cell, nest: Nest, state: StepState) -> tuple[Any, Any] | Refusal:
    ident = StepState._id(cell.buffer)
    slot = (ident, cell.key)
    origin = state.origins.get(slot, nest.time.origin)
    name = cell.buffer.name
    if cell.lag > 1:
        newer = state.cells[(ident, cell.key, cell.lag - 1)]
        return tirx.BufferLoad(newer.before, newer.indices), origin
    step = state.values.get(slot)
    if step is None:
        return Refusal(
            RefusalKind.UNSUPPORTED_BODY,
            nest.time.origin,
            f"expected the cell of {name} that a step reads to be written by the same index, "
            f"found no such store",
            "write the state at the index at which the next step reads it",
        )
    unknown = [var for var in tir.variables(step).keys() if var in state.opaque]
    befores = tir.VarMap((c.before, True) for c in state.cells.values())
    if any(state.depends_on(var, befores) for var in unknown):
        return _coupled(cell, origin, "a sum over, or another cell of, the state")
    if unknown:
        return Refusal(
            RefusalKind.UNSUPPORTED_BODY,
            origin,
            f"expected the step of {name} as an expression of inputs, found a value that an "
            "inner loop accumulates",
            "compute that value in a loop nest of its own, before the time loop",
        )
    return step, origin


def _coupled(cell: Cell, origin: Any, found: str) -> Refusal:
    return Refusal(
        RefusalKind.COUPLED_CARRIES,
        origin,
        f"expected each cell of {cell.buffer.name} to depend on itself, or on a few other cells "
        f"that are named one by one, found a step that reads {found}",
        "a dense transition of up to four cells is taken, written out or as loops of at most "
        "four. Of the wider ones parallelize takes those that are diagonal plus rank one, such as "
        "the delta rule's I - b k k^T, in the forms and on the devices of docs/families.md; of any "
        "other the product over a chunk is a dense matrix. Keep the loop, whose lanes run in "
        "parallel",
    )


def one_group(drafts: list[Draft]) -> list[tuple[list[int], int]] | Refusal:
    """All carries as one group; as ``find_groups`` otherwise."""
    everything = list(range(len(drafts)))
    return _join(everything, drafts) or [(everything, 0)]


def find_groups(drafts: list[Draft]) -> list[tuple[list[int], int]] | Refusal:
    """Strongly connected components, and the level of each.

    Steps and indices of a group of several carries are renamed to the state axes of its first
    one, and its own carries appear in its steps as their ``old``.

    Parameters
    ----------
    drafts : list of Draft
        The steps; those of a group are changed in place.

    Returns
    -------
    list of (list of int, int) or Refusal
        Positions and level, in order of the levels.
    """
    reach = [set(draft.feeds) for draft in drafts]
    for via in range(len(drafts)):
        for sources in reach:
            if via in sources:
                sources |= reach[via]
    seen: set[int] = set()
    components: list[list[int]] = []
    for i in range(len(drafts)):
        if i not in seen:
            component = [
                j for j in range(len(drafts)) if j == i or (j in reach[i] and i in reach[j])
            ]
            seen |= set(component)
            components.append(component)
    level: dict[int, int] = {}

    def level_of(component: list[int]) -> int:
        if component[0] not in level:
            fed_by = set().union(*(drafts[i].feeds for i in component)) - set(component)
            before = [level_of(next(c for c in components if j in c)) for j in fed_by]
            value = 1 + max(before, default=-1)
            level.update(dict.fromkeys(component, value))
        return level[component[0]]

    out = sorted(((c, level_of(c)) for c in components), key=lambda pair: pair[1])
    for component, _ in out:
        if len(component) > 1 and (refused := _join(component, drafts)) is not None:
            return refused
    return out


def _join(component: list[int], drafts: list[Draft]) -> Refusal | None:
    """Bring the carries of a component to common axes; refuse reads of other cells."""
    first = drafts[component[0]]
    members = [drafts[i] for i in component]
    for draft in members:
        extents = [axis.extent for axis in draft.axes]
        if extents != [axis.extent for axis in first.axes]:
            return _coupled(draft.cell, draft.origin, "a sum over, or another cell of, the state")
        table = tir.VarMap(
            (axis.var, common.var) for axis, common in zip(draft.axes, first.axes, strict=True)
        )
        draft.step = tir.substitute(draft.step, table)
        draft.cell.indices = [
            k if isinstance(k, int) else tir.substitute(k, table) for k in draft.cell.indices
        ]
        draft.axes = first.axes
    for draft in members:

        def carried(load: Any) -> Any:
            for other in members:
                if other.cell.is_read_by(load):
                    return other.cell.old
            return load

        draft.step = tir.map_loads(draft.step, carried)
        for load in tir.loads(draft.step):
            if any(load.source.same_as(other.cell.before) for other in members):
                return _coupled(draft.cell, draft.origin, f"another cell of {load.source.name}")
    return None
