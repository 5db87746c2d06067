"""Matrix states: ``H = diag(w) H + x a'``, read by ``y = H c``."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from tvm_scan.loops.writer import Loop, unless


def outer_products(
    batch: Expr,
    heads: Expr,
    lanes: Expr,
    length: Expr,
    *,
    states: int,
    dtype: str,
    gate: str,
    emit: str,
    reverse: bool,
    has_reset: bool = False,
) -> tirx.PrimFunc:
    """Build ``outer_products(w, a, x, c, [reset,] first, last, y)``.

    Arrays are (batch, length, heads, .): `x` and `y` have an entry a lane, `a` and `c` one a
    state of it, `w` one a lane, a state or a head as `gate` says. The states are (batch, heads,
    lanes, states). `emit` is ``inclusive``, ``exclusive`` or ``late``, as in `affine`. `reset`
    is (batch, length).
    """
    token = (batch, length, heads)
    gates = {"lane": (*token, lanes), "state": (*token, states), "head": token}[gate]
    with Loop() as loop:
        w = loop.array("w", gates, dtype)
        a = loop.array("a", (*token, states), dtype)
        x = loop.array("x", (*token, lanes), dtype)
        c = loop.array("c", (*token, states), dtype)
        reset = loop.array("reset", (batch, length), "int8") if has_reset else None
        first, last = (
            loop.array(name, (batch, heads, lanes, states), dtype) for name in ("first", "last")
        )
        y = loop.array("y", (*token, lanes), dtype)
        with loop.lanes("bhd", batch, heads, lanes):
            with loop.begin() as lane, loop.over(states) as n:
                last[lane, n] = first[lane, n]
            with loop.steps(length, "step") as ((b, h, d), step):
                total = loop.cell("total", dtype)
                here = (b, length - 1 - step if reverse else step, h)
                total[0] = 0
                with loop.over(states) as n:
                    state = (b, h, d, n)
                    decay = w[{"lane": (*here, d), "state": (*here, n), "head": here}[gate]]
                    added = x[here, d] * a[here, n]
                    if emit == "late":
                        total[0] = total[0] + (last[state] + added) * c[here, n]
                        last[state] = unless(reset, here[:2], decay * (last[state] + added))
                    else:
                        if emit == "exclusive":
                            total[0] = total[0] + last[state] * c[here, n]
                        last[state] = unless(reset, here[:2], decay * last[state]) + added
                        if emit == "inclusive":
                            total[0] = total[0] + last[state] * c[here, n]
                y[here, d] = total[0]
    return loop.func
