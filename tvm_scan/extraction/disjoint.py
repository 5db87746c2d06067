"""The check that lanes own the cells that they write."""

from __future__ import annotations

from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.layouts import Box, Layouts
from tvm_scan.extraction.nest import Nest, linear_in


def lanes_apart(buffer: Var, layouts: Layouts, extra_steps: int = 0) -> bool:
    """Return whether no two lanes meet in a cell, the ``extra_steps`` before time included.

    Lanes whose iterations have cells of their own (``nest.private``) need no index of theirs.
    """
    nest, box = layouts.nest, layouts.boxes[buffer]
    undetermined = tir.VarMap(
        (lane.var, tir.as_int(lane.extent))
        for lane, private in zip(nest.lanes, nest.private, strict=True)
        if buffer not in private
    )
    progress = True
    while len(undetermined) and progress:
        progress = False
        for dim in range(len(box.base)):
            determined = _determined_by(dim, box, nest, undetermined, extra_steps)
            if determined:
                progress = True
                undetermined = tir.VarMap(
                    (v, e)
                    for v, e in undetermined.items()
                    if not any(v.same_as(f) for f in determined)
                )
    return not len(undetermined)


def _determined_by(
    dim: int, box: Box, nest: Nest, undetermined: tir.VarMap, extra_steps: int
) -> list[Var]:
    """Lanes that the index of one dimension determines.

    Theorem. Let an index be ``sum c_i v_i + r`` with ``0 <= v_i < n_i`` and ``r`` fixed by lanes
    that are already determined. If, ordered by ``|c_i|``, each ``|c_i|`` exceeds the sum of
    ``|c_j| (n_j - 1)`` over the smaller ones, the index determines every ``v_i`` (mixed radix).
    The cells of one step and time itself count as variables.
    """
    rest = box.base[dim]
    terms: list[tuple[int, int | None]] = []
    lanes: list[Var] = []
    for var, extent in undetermined.items():
        if not tir.contains_var(rest, [var]):
            continue
        part = linear_in(rest, var)
        if part is None or part[0] == 0:
            return []
        rest = part[1]
        terms.append((abs(part[0]), extent))
        lanes.append(var)
    if not lanes or any(tir.contains_var(rest, [var]) for var in lanes):
        return []
    if dim == box.time_dim:
        steps = tir.as_int(nest.time.extent)
        terms.append((abs(box.time_step), None if steps is None else steps + extra_steps))
    if box.extents[dim] > 1:
        terms.append((1, box.extents[dim]))
    reach = 0
    for position, (coefficient, extent) in enumerate(sorted(terms, key=lambda term: term[0])):
        if coefficient <= reach:
            return []
        if extent is None:
            # Only the slowest variable may have an extent that is not known.
            return lanes if position == len(terms) - 1 else []
        reach += coefficient * max(extent - 1, 0)
    return lanes
