"""Loops that write the same cells in every iteration and read none of them."""

from __future__ import annotations

from tvm_scan import tir
from tvm_scan.extraction.statements import Condition, Loop, statements_in, stores_in
from tvm_scan.recurrence import Refusal, RefusalKind


def may_keep(loop: Loop) -> bool:
    """Return whether ``loop`` stores under a condition.

    Where the condition is false the memory keeps what an earlier iteration wrote: such a loop
    carries although it reads nothing, as the reservoir ``if u[t] < p: r = x[t]`` does.
    """
    return any(isinstance(s, Condition) and stores_in([s]) for s in statements_in(loop.body))


def overwritten(loop: Loop) -> Refusal:
    """Refuse a loop of which only the last iteration counts."""
    stores = stores_in(loop.body)
    fixed = [s for s in stores if not tir.contains_var(list(s.indices), [loop.var])]
    store = (fixed or stores)[-1]
    return Refusal(
        RefusalKind.NO_RECURRENCE,
        store.origin,
        "expected a step that reads what an earlier step wrote, found that every iteration of "
        f"{loop.var.name} overwrites {store.buffer.name}: only the last one counts",
        f"write {store.buffer.name} once, at {loop.var.name} = {tir.simplify(loop.extent - 1)}, "
        "without the loop",
    )
