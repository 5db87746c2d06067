"""Matrix states: ``H = diag(w) H + x a'``, read by ``y = H c``.

The annotations are evaluated by the script parser.
"""

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, keep_parameters

from .frame import ATTRS, const, unless


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
    nb, nh, nd, nl, N = batch, heads, lanes, length, states

    def at(b: Expr, h: Expr, step: Expr, i: Expr) -> tuple[Expr, ...]:
        return (b, nl - 1 - step if reverse else step, h, i)

    def kept(reset: tirx.Var, when: tuple[Expr, ...], value: Expr) -> Expr:
        return unless(reset, when, value, dtype, has_reset)

    gates = {"lane": (nb, nl, nh, nd), "state": (nb, nl, nh, N), "head": (nb, nl, nh)}[gate]

    @T.prim_func(s_tir=True)
    def main(
        w: T.Buffer(gates, dtype),
        a: T.Buffer((nb, nl, nh, N), dtype),
        x: T.Buffer((nb, nl, nh, nd), dtype),
        c: T.Buffer((nb, nl, nh, N), dtype),
        reset: T.Buffer((nb, nl), "int8"),
        first: T.Buffer((nb, nh, nd, N), dtype),
        last: T.Buffer((nb, nh, nd, N), dtype),
        y: T.Buffer((nb, nl, nh, nd), dtype),
    ) -> None:
        T.func_attr(ATTRS)
        for b, h, d in T.grid(nb, nh, nd):
            with T.sblock("init"):
                vb, vh, vd = T.axis.remap("SSS", [b, h, d])
                for n in range(N):
                    last[vb, vh, vd, n] = first[vb, vh, vd, n]
            for t in range(nl):
                with T.sblock("step"):
                    vb, vh, vd = T.axis.remap("SSS", [b, h, d])
                    vt = T.axis.scan(nl, t)
                    total = T.sblock_alloc_buffer((1,), dtype)
                    lane = T.meta_var(at(vb, vh, vt, vd))
                    when = T.meta_var(lane[:2])
                    total[0] = const(0, dtype)
                    for n in range(N):
                        state = T.meta_var(at(vb, vh, vt, n))
                        decay = T.meta_var(
                            w[{"lane": lane, "state": state, "head": lane[:3]}[gate]]
                        )
                        if emit == "inclusive":
                            last[vb, vh, vd, n] = (
                                kept(reset, when, decay * last[vb, vh, vd, n]) + x[lane] * a[state]
                            )
                            total[0] = total[0] + last[vb, vh, vd, n] * c[state]
                        elif emit == "exclusive":
                            total[0] = total[0] + last[vb, vh, vd, n] * c[state]
                            last[vb, vh, vd, n] = (
                                kept(reset, when, decay * last[vb, vh, vd, n]) + x[lane] * a[state]
                            )
                        else:
                            total[0] = (
                                total[0] + (last[vb, vh, vd, n] + x[lane] * a[state]) * c[state]
                            )
                            last[vb, vh, vd, n] = kept(
                                reset, when, decay * (last[vb, vh, vd, n] + x[lane] * a[state])
                            )
                    y[lane] = total[0]

    names = ["w", "a", "x", "c", *(["reset"] if has_reset else []), "first", "last", "y"]
    return keep_parameters(main, names)
