"""Accesses that fit no box, and what to say of each."""

from __future__ import annotations

from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.extraction.accesses import Access
from tvm_scan.extraction.layouts import Box, Layouts
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Refusal, RefusalKind
from tvm_scan.text import as_text


def misfit(access: Access, layouts: Layouts) -> Refusal:
    """Say why an access does not fit its box."""
    box: Box = layouts.boxes[access.buffer]
    name = access.buffer.name
    time = layouts.nest.time.var
    for dim, index in enumerate(access.indices):
        part = linear_in(index, time)
        wanted = box.time_step if dim == box.time_dim else 0
        if part is None or part[0] != wanted:
            return Refusal(
                RefusalKind.VARYING_LAG,
                access.origin,
                f"expected {name} to be read at a fixed distance from the step that writes it, "
                f"found the index {as_text(index)}",
                "read the step before, at the same stride and in the same direction",
            )
        if dim == box.time_dim:
            zero = tir.VarMap((loop.var, tir.zero_like(loop.var)) for loop in access.inner)
            fixed = tir.substitute(part[1], zero)
            distance = tir.as_int(tir.simplify(fixed - box.base[dim]))
            if distance is None or access.inner:
                return Refusal(
                    RefusalKind.VARYING_LAG,
                    access.origin,
                    f"expected {name} to be read at a constant lag, found the index "
                    f"{as_text(index)}",
                    "read the step before",
                )
            if distance % box.time_step:
                return _several_steps(access, time, abs(box.time_step))
    return Refusal(
        RefusalKind.CROSS_LANE,
        access.origin,
        f"expected {name} to be accessed in the lane that owns it, found the index "
        f"[{', '.join(map(as_text, access.indices))}]",
        "let every access of a written buffer use the same lane index",
    )


def _several_steps(access: Access, time: Var, cells: int) -> Refusal:
    """An iteration that makes several steps, as of a loop unrolled by hand."""
    name = access.buffer.name
    index = ", ".join(map(as_text, access.indices))
    return Refusal(
        RefusalKind.VARYING_LAG,
        access.origin,
        f"expected one step of {name} per iteration of {time.name}, found [{index}], which lies "
        f"between the cells of two iterations: they are {cells} apart",
        f"roll the loop up: one step per iteration, all steps alike. A loop over {name} that is "
        "unrolled by hand is taken where its steps are the same up to the index",
    )
