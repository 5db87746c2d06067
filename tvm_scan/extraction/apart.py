"""Loops whose iterations never meet in a cell."""

from __future__ import annotations

from tvm.ir import Range
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.extraction.accesses import Access, accesses_of, private_in
from tvm_scan.extraction.nest import linear_in
from tvm_scan.extraction.statements import Loop


def has_own_cells(loop: Loop, external: tir.VarMap) -> bool:
    """Return whether two iterations never meet in a cell: the loop is then over lanes, not time.

    Theorem. Let a written buffer be indexed, in some dimension and in all accesses, by
    ``c v + r`` with one ``c != 0``, and let all values of ``r``, the inner loops included, lie
    within a range shorter than ``|c|``. Then iterations of ``v`` touch different cells of it.
    """
    private = private_in(loop.body, external)
    inside = accesses_of(loop.body)
    written = tir.VarMap((a.buffer, True) for a in inside if a.is_store and a.buffer not in private)
    return all(
        are_apart(loop, [a for a in inside if a.buffer.same_as(buffer)])
        for buffer in written.keys()
    )


def are_apart(loop: Loop, accesses: list[Access]) -> bool:
    """Return whether iterations of ``loop`` never meet in a cell of a buffer.

    Parameters
    ----------
    loop : Loop
        The loop.
    accesses : list of Access
        All of one buffer, in its variable and the loops in ``inner``.
    """
    dimensions = range(len(accesses[0].indices))
    return any(_is_apart_in(loop, accesses, dim) for dim in dimensions)


def _is_apart_in(loop: Loop, accesses: list[Access], dim: int) -> bool:
    analyzer = Analyzer()
    around = tir.VarMap((inner.var, inner.extent) for a in accesses for inner in a.inner)
    for var, extent in around.items():
        analyzer.bind(var, Range.from_min_extent(tir.zero_like(var), extent))
    still = tir.VarMap((var, tir.zero_like(var)) for var in around.keys())
    lowest = highest = step = 0
    base = None
    for access in accesses:
        index = access.indices[dim]
        linear = linear_in(index, loop.var)
        if linear is None or not linear[0] or tir.loads(index):
            return False
        if base is None:
            step, base = linear[0], tir.substitute(linear[1], still)
        if linear[0] != step:
            return False
        bound = analyzer.const_int_bound(analyzer.simplify(linear[1] - base))
        lowest = min(lowest, int(bound.min_value))
        highest = max(highest, int(bound.max_value))
    return highest - lowest < abs(step)
