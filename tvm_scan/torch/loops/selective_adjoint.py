"""The adjoint of the selective scan, chunk by chunk; see `selective`.

The annotations are evaluated by the script parser.
"""

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, keep_parameters
from tvm_scan.library.selective_scan_loops import silu_expr

from .frame import ATTRS, bind_steps, const
from .selective import Options

__all__ = ["selective_backward_chunk"]

#: Partial sums that a sum over channels keeps.
_LANES = 16


def selective_backward_chunk(
    batch: Expr,
    groups: Expr,
    channels: Expr,
    length: Expr,
    steps: Expr,
    *,
    states: int,
    dtype: str,
    softplus: bool,
    reverse: bool,
    has_bias: bool,
    has_D: bool,
    has_z: bool,
    has_reset: bool,
    sums: bool,
    fixed_B: bool = False,
    fixed_C: bool = False,
) -> tirx.PrimFunc:
    """Build the adjoint of `steps` steps from `start`, two recurrences and two sums.

    ``chunk(start, steps, u, delta, A, B, C, [D, z, bias, reset,] head, g_out, carry, history,
    adjoint, step, drive, gated, g_A, g_u, g_delta, [g_z,] g_B, g_C, [g_D, g_bias])``. Sequences
    have time before channels, (batch, groups, length, channels), B and C (batch, groups, length,
    states): channels a page of memory apart would evict each other from the cache. B or C that
    are fixed in time are (groups, channels, states).

    The first recurrence walks forward from the state `head` and fills ``history`` with the states
    of this chunk alone; the second walks back, with the adjoint of the state in ``carry``, from
    after this chunk to before it, and the gradient of A, to which every chunk adds. Of each step
    it leaves ``adjoint`` (that of the state), ``step`` (dt), ``drive`` (dt u) and ``gated`` (that
    of the output before the gate). Sums over channels of these are the gradients of B and C, sums
    over time are added to those of D and the bias; without `sums` both are left to the caller.
    To the gradient of what is fixed in time every chunk adds, as to that of A.
    """
    option = Options(dtype, dtype, softplus, has_bias, has_D, has_z, has_reset, fixed_B, fixed_C)
    nb, ng, nd, nl, nk, N = batch, groups, channels, length, steps, states
    slope, kept = option.slope, option.kept
    sequence, projection, scratch = (nb, ng, nl, nd), (nb, ng, nl, N), (nb, ng, nk, N, nd)

    shapes = {fixed: (ng, nd, N) if fixed else projection for fixed in (False, True)}
    gradients = {fixed: (nb, ng, nd, N) if fixed else projection for fixed in (False, True)}

    def projected(fixed: bool, b: Expr, g: Expr, d: Expr, n: Expr, time: Expr) -> tuple[Expr, ...]:
        return (g, d, n) if fixed else (b, g, time, n)

    def time_of(start: Expr, step: Expr) -> Expr:
        return nl - 1 - start - step if reverse else start + step

    def sigmoid(z: Expr) -> Expr:
        return const(1, dtype) / (const(1, dtype) + T.exp(-z))

    def incoming(g_out: tirx.Var, z: tirx.Var, at: tuple[Expr, ...]) -> Expr:
        """Adjoint of what is gated."""
        return g_out[at] * silu_expr(z[at], dtype) if has_z else g_out[at]

    def skip(D: tirx.Var, at: tuple[Expr, ...], value: Expr) -> Expr:
        return D[at[1], at[3]] * value if has_D else const(0, dtype)

    # `steps` is free until `bind_steps` makes it a parameter.
    @T.prim_func(s_tir=True, check_well_formed=False)
    def main(
        start: T.int64,
        u: T.Buffer(sequence, dtype),
        delta: T.Buffer(sequence, dtype),
        A: T.Buffer((ng, nd, N), dtype),
        B: T.Buffer(shapes[fixed_B], dtype),
        C: T.Buffer(shapes[fixed_C], dtype),
        D: T.Buffer((ng, nd), dtype),
        z: T.Buffer(sequence, dtype),
        bias: T.Buffer((ng, nd), dtype),
        reset: T.Buffer((nb, nl), "int8"),
        head: T.Buffer((nb, ng, nd, N), dtype),
        g_out: T.Buffer(sequence, dtype),
        carry: T.Buffer((nb, ng, nd, N), dtype),
        history: T.Buffer((nb, ng, nk + 1, N, nd), dtype),
        adjoint: T.Buffer(scratch, dtype),
        step: T.Buffer((nb, ng, nk, nd), dtype),
        drive: T.Buffer((nb, ng, nk, nd), dtype),
        gated: T.Buffer((nb, ng, nk, nd), dtype),
        g_A: T.Buffer((nb, ng, nd, N), dtype),
        g_u: T.Buffer(sequence, dtype),
        g_delta: T.Buffer(sequence, dtype),
        g_z: T.Buffer(sequence, dtype),
        g_B: T.Buffer(gradients[fixed_B], dtype),
        g_C: T.Buffer(gradients[fixed_C], dtype),
        g_D: T.Buffer((ng, nd), dtype),
        g_bias: T.Buffer((ng, nd), dtype),
    ) -> None:
        T.func_attr(ATTRS)
        state = T.sblock_alloc_buffer((nb, ng, nd, N), dtype)
        for b, g, d in T.grid(nb, ng, nd):
            with T.sblock("head"):
                vb, vg, vd = T.axis.remap("SSS", [b, g, d])
                for n in range(N):
                    state[vb, vg, vd, n] = head[vb, vg, vd, n]
                    history[vb, vg, 0, n, vd] = head[vb, vg, vd, n]
            for k in range(nk):
                with T.sblock("again"):
                    vb, vg, vd = T.axis.remap("SSS", [b, g, d])
                    vk = T.axis.scan(nk, k)
                    dt = T.sblock_alloc_buffer((1,), dtype)
                    time = T.meta_var(time_of(start, vk))
                    at = T.meta_var((vb, vg, time, vd))
                    dt[0] = option.step_size(delta[at], bias, vg, vd)
                    step[vb, vg, vk, vd] = dt[0]
                    drive[vb, vg, vk, vd] = dt[0] * u[at]
                    for n in range(N):
                        after = T.meta_var(T.exp(dt[0] * A[vg, vd, n]) * state[vb, vg, vd, n])
                        state[vb, vg, vd, n] = (
                            kept(reset, vb, time, after)
                            + dt[0] * B[projected(fixed_B, vb, vg, vd, n, time)] * u[at]
                        )
                        history[vb, vg, vk + 1, n, vd] = state[vb, vg, vd, n]
        for b, g, d in T.grid(nb, ng, nd):
            for k in range(nk):
                with T.sblock("back"):
                    vb, vg, vd = T.axis.remap("SSS", [b, g, d])
                    vr = T.axis.scan(nk, k)
                    vk = T.meta_var(nk - 1 - vr)
                    time = T.meta_var(time_of(start, vk))
                    at = T.meta_var((vb, vg, time, vd))
                    grad = T.sblock_alloc_buffer((1,), dtype)
                    to_u = T.sblock_alloc_buffer((1,), dtype)
                    to_dt = T.sblock_alloc_buffer((1,), dtype)
                    y = T.sblock_alloc_buffer((1,), dtype)
                    total = T.sblock_alloc_buffer((1,), dtype)
                    back = T.sblock_alloc_buffer((1,), dtype)
                    passed = T.sblock_alloc_buffer((1,), dtype)
                    grad[0] = incoming(g_out, z, at)
                    gated[vb, vg, vk, vd] = grad[0]
                    to_u[0] = const(0, dtype)
                    to_dt[0] = const(0, dtype)
                    y[0] = const(0, dtype)
                    for n in range(N):
                        # Values in cells of their own, or every use would compute them again.
                        total[0] = (
                            carry[vb, vg, vd, n]
                            + grad[0] * C[projected(fixed_C, vb, vg, vd, n, time)]
                        )
                        back[0] = kept(
                            reset, vb, time, total[0] * T.exp(step[vb, vg, vk, vd] * A[vg, vd, n])
                        )
                        # Not zero times the history, which is another sequence's.
                        passed[0] = kept(reset, vb, time, back[0] * history[vb, vg, vk, n, vd])
                        adjoint[vb, vg, vk, n, vd] = total[0]
                        g_A[vb, vg, vd, n] = g_A[vb, vg, vd, n] + passed[0] * step[vb, vg, vk, vd]
                        if fixed_B:
                            g_B[vb, vg, vd, n] = (
                                g_B[vb, vg, vd, n] + total[0] * drive[vb, vg, vk, vd]
                            )
                        if fixed_C:
                            g_C[vb, vg, vd, n] = (
                                g_C[vb, vg, vd, n] + history[vb, vg, vk + 1, n, vd] * grad[0]
                            )
                        to_u[0] = to_u[0] + total[0] * B[projected(fixed_B, vb, vg, vd, n, time)]
                        to_dt[0] = to_dt[0] + passed[0] * A[vg, vd, n]
                        if has_z:
                            y[0] = (
                                y[0]
                                + history[vb, vg, vk + 1, n, vd]
                                * C[projected(fixed_C, vb, vg, vd, n, time)]
                            )
                        carry[vb, vg, vd, n] = back[0]
                    g_u[at] = to_u[0] * step[vb, vg, vk, vd] + skip(D, at, grad[0])
                    g_delta[at] = (to_dt[0] + to_u[0] * u[at]) * slope(delta[at], bias, vg, vd)
                    if has_z:
                        g_z[at] = (
                            g_out[at]
                            * (y[0] + skip(D, at, u[at]))
                            * sigmoid(z[at])
                            * (const(1, dtype) + z[at] * (const(1, dtype) - sigmoid(z[at])))
                        )

        if sums and not (fixed_B and fixed_C):
            for r in T.parallel(nb * ng * nk):
                with T.sblock("sums_over_channels"):
                    vr = T.axis.spatial(nb * ng * nk, r)
                    at_B = T.sblock_alloc_buffer((_LANES,), dtype)
                    at_C = T.sblock_alloc_buffer((_LANES,), dtype)
                    vb = T.meta_var(vr // (ng * nk))
                    vg = T.meta_var(vr // nk % ng)
                    vk = T.meta_var(vr % nk)
                    time = T.meta_var(time_of(start, vk))
                    for n in range(N):
                        for v in T.vectorized(_LANES):
                            at_B[v] = const(0, dtype)
                            at_C[v] = const(0, dtype)
                        for c in range(nd // _LANES):
                            for v in T.vectorized(_LANES):
                                d = T.meta_var(c * _LANES + v)
                                at_B[v] = at_B[v] + adjoint[vb, vg, vk, n, d] * drive[vb, vg, vk, d]
                                at_C[v] = (
                                    at_C[v] + history[vb, vg, vk + 1, n, d] * gated[vb, vg, vk, d]
                                )
                        for c in range(nd % _LANES):
                            d = T.meta_var(nd - 1 - c)
                            at_B[0] = at_B[0] + adjoint[vb, vg, vk, n, d] * drive[vb, vg, vk, d]
                            at_C[0] = at_C[0] + history[vb, vg, vk + 1, n, d] * gated[vb, vg, vk, d]
                        if not fixed_B:
                            g_B[vb, vg, time, n] = _total(at_B)
                        if not fixed_C:
                            g_C[vb, vg, time, n] = _total(at_C)
        if sums:
            for r in T.parallel(ng):
                with T.sblock("sums_over_time"):
                    vr = T.axis.spatial(ng, r)
                    for b, k, d in T.grid(nb, nk, nd):
                        at = T.meta_var((b, vr, time_of(start, k), d))
                        if has_bias:
                            g_bias[vr, d] = g_bias[vr, d] + g_delta[at]
                        if has_D:
                            g_D[vr, d] = g_D[vr, d] + gated[b, vr, k, d] * u[at]

    names = ["start", "u", "delta", "A", "B", "C", *option.names(), "head", "g_out", "carry"]
    names += ["history", "adjoint", "step", "drive", "gated", "g_A", "g_u", "g_delta"]
    given = {"g_z": has_z, "g_B": sums or fixed_B, "g_C": sums or fixed_C}
    given |= {"g_D": sums and has_D, "g_bias": sums and has_bias}
    names += [name for name, is_given in given.items() if is_given]
    return bind_steps(keep_parameters(main, names), steps)


def _total(lanes: tirx.Var) -> Expr:
    """Add the lanes of a vector, by halves."""
    parts = [lanes[i] for i in range(_LANES)]
    while len(parts) > 1:
        parts = [left + right for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
