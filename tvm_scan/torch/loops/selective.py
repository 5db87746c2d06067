"""The selective scan, and its adjoint chunk by chunk.

Arrays are (batch, groups, channels, length), B and C (batch, groups, states, length): the
channels of a group share B and C. The annotations are evaluated by the script parser.
"""

from dataclasses import dataclass

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, keep_parameters
from tvm_scan.library.selective_scan_loops import silu_expr, softplus_expr

from .frame import ATTRS, bind_steps, cast, const


@dataclass(frozen=True)
class _Options:
    """Constants of a kernel, and the terms of its step."""

    dtype: str
    wide: str
    softplus: bool
    reverse: bool
    has_bias: bool
    has_D: bool
    has_z: bool
    has_reset: bool

    def load(self, buffer: tirx.Var, where: tuple) -> Expr:
        return cast(buffer[where], self.dtype, self.wide)

    def biased(self, delta: tirx.Var, bias: tirx.Var, where: tuple) -> Expr:
        value = self.load(delta, where)
        return value + bias[where[1], where[2]] if self.has_bias else value

    def step_size(self, delta: tirx.Var, bias: tirx.Var, where: tuple) -> Expr:
        value = self.biased(delta, bias, where)
        return softplus_expr(value, self.wide) if self.softplus else value

    def slope(self, delta: tirx.Var, bias: tirx.Var, where: tuple) -> Expr:
        """Derivative of the step size with respect to delta: the sigmoid, without overflow."""
        if not self.softplus:
            return const(1, self.wide)
        value = self.biased(delta, bias, where)
        small = T.exp(-T.abs(value))
        top = T.Select(value >= const(0, self.wide), const(1, self.wide), small)
        return top / (const(1, self.wide) + small)

    def decay(self, reset: tirx.Var, b: Expr, time: Expr, product: Expr) -> Expr:
        """``exp(dt A)``, or 0 where the state starts anew."""
        if not self.has_reset:
            return T.exp(product)
        return T.Select(reset[b, time] != T.int8(0), const(0, self.wide), T.exp(product))

    def names(self) -> list[str]:
        optional = (("D", self.has_D), ("z", self.has_z), ("bias", self.has_bias))
        return [n for n, kept in (*optional, ("reset", self.has_reset)) if kept]


def _wide(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def selective_forward(
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
) -> tirx.PrimFunc:
    """Build ``forward(start, steps, u, delta, A, B, C, [D, z, bias, reset,] head, out, tail)``.

    ``h = exp(dt A) h + dt B u; y = C . h + D u; out = y silu(z)`` for `steps` steps from the
    step `start`, from the state `head` to the state `tail`.
    """
    wide = _wide(dtype)
    option = _Options(dtype, wide, softplus, reverse, has_bias, has_D, has_z, has_reset)
    nb, ng, nd, nl, nk, N = batch, groups, channels, length, steps, states
    load, step_size, decay = option.load, option.step_size, option.decay
    sequence, projection, state = (nb, ng, nd, nl), (nb, ng, N, nl), (nb, ng, nd, N)

    def time_of(start: Expr, step: Expr) -> Expr:
        return nl - 1 - start - step if reverse else start + step

    def finish(y: Expr, u: Expr, D: tirx.Var, z: tirx.Var, where: tuple) -> Expr:
        total = y + D[where[1], where[2]] * u if has_D else y
        total = total * silu_expr(load(z, where), wide) if has_z else total
        return cast(total, wide, dtype)

    # `steps` is free until `bind_steps` makes it a parameter.
    @T.prim_func(s_tir=True, check_well_formed=False)
    def main(
        start: T.int64,
        u: T.Buffer(sequence, dtype),
        delta: T.Buffer(sequence, dtype),
        A: T.Buffer((ng, nd, N), wide),
        B: T.Buffer(projection, dtype),
        C: T.Buffer(projection, dtype),
        D: T.Buffer((ng, nd), wide),
        z: T.Buffer(sequence, dtype),
        bias: T.Buffer((ng, nd), wide),
        reset: T.Buffer((nb, nl), "int8"),
        head: T.Buffer(state, wide),
        out: T.Buffer(sequence, dtype),
        tail: T.Buffer(state, wide),
    ) -> None:
        T.func_attr(ATTRS)
        for b, g, d in T.grid(nb, ng, nd):
            with T.sblock("init"):
                vb, vg, vd = T.axis.remap("SSS", [b, g, d])
                for n in range(N):
                    tail[vb, vg, vd, n] = head[vb, vg, vd, n]
            for t in range(nk):
                with T.sblock("step"):
                    vb, vg, vd = T.axis.remap("SSS", [b, g, d])
                    vt = T.axis.scan(nk, t)
                    dt = T.sblock_alloc_buffer((1,), wide)
                    y = T.sblock_alloc_buffer((1,), wide)
                    time = T.meta_var(time_of(start, vt))
                    at = T.meta_var((vb, vg, vd, time))
                    dt[0] = step_size(delta, bias, at)
                    y[0] = const(0, wide)
                    for n in range(N):
                        tail[vb, vg, vd, n] = (
                            decay(reset, vb, time, dt[0] * A[vg, vd, n]) * tail[vb, vg, vd, n]
                            + dt[0] * load(B, (vb, vg, n, time)) * load(u, at)
                        )
                        y[0] = y[0] + tail[vb, vg, vd, n] * load(C, (vb, vg, n, time))
                    out[at] = finish(y[0], load(u, at), D, z, at)

    names = ["start", "u", "delta", "A", "B", "C", *option.names(), "head", "out", "tail"]
    return bind_steps(keep_parameters(main, names), steps)


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
) -> tirx.PrimFunc:
    """Build the adjoint of one chunk of `steps` steps, two recurrences.

    ``chunk(start, steps, u, delta, A, B, C, [D, z, bias, reset,] head, g_out, carry, history, adjoint,
    through, step, g_u, g_delta, [g_z])``. The first walks forward from the state `head` and fills
    ``history`` with the states of this chunk alone; the second walks back, with the adjoint of
    the state in ``carry``, from after this chunk to before it. Of each step it leaves ``adjoint``
    (that of the state), ``through`` (the adjoint times the decayed state before) and ``step``
    (dt), from which sums over channels and time give the gradients of A, B and C.
    """
    wide = _wide(dtype)
    option = _Options(dtype, wide, softplus, reverse, has_bias, has_D, has_z, has_reset)
    nb, ng, nd, nl, nk, N = batch, groups, channels, length, steps, states
    load, step_size, slope, decay = option.load, option.step_size, option.slope, option.decay
    sequence, projection, scratch = (nb, ng, nd, nl), (nb, ng, N, nl), (nb, ng, nk, N, nd)

    def time_of(start: Expr, step: Expr) -> Expr:
        return nl - 1 - start - step if reverse else start + step

    def sigmoid(z: Expr) -> Expr:
        return const(1, wide) / (const(1, wide) + T.exp(-z))

    def incoming(g_out: tirx.Var, z: tirx.Var, at: tuple) -> Expr:
        """Adjoint of what is gated."""
        g = load(g_out, at)
        return g * silu_expr(load(z, at), wide) if has_z else g

    def skip(D: tirx.Var, at: tuple, g: Expr) -> Expr:
        return D[at[1], at[2]] * g if has_D else const(0, wide)

    # `steps` is free until `bind_steps` makes it a parameter.
    @T.prim_func(s_tir=True, check_well_formed=False)
    def main(
        start: T.int64,
        u: T.Buffer(sequence, dtype),
        delta: T.Buffer(sequence, dtype),
        A: T.Buffer((ng, nd, N), wide),
        B: T.Buffer(projection, dtype),
        C: T.Buffer(projection, dtype),
        D: T.Buffer((ng, nd), wide),
        z: T.Buffer(sequence, dtype),
        bias: T.Buffer((ng, nd), wide),
        reset: T.Buffer((nb, nl), "int8"),
        head: T.Buffer((nb, ng, nd, N), wide),
        g_out: T.Buffer(sequence, dtype),
        carry: T.Buffer((nb, ng, nd, N), wide),
        history: T.Buffer((nb, ng, nk + 1, N, nd), wide),
        adjoint: T.Buffer(scratch, wide),
        through: T.Buffer(scratch, wide),
        step: T.Buffer((nb, ng, nk, nd), wide),
        g_u: T.Buffer(sequence, dtype),
        g_delta: T.Buffer(sequence, dtype),
        g_z: T.Buffer(sequence, dtype),
    ) -> None:
        T.func_attr(ATTRS)
        state = T.sblock_alloc_buffer((nb, ng, nd, N), wide)
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
                    dt = T.sblock_alloc_buffer((1,), wide)
                    at = T.meta_var((vb, vg, vd, time_of(start, vk)))
                    dt[0] = step_size(delta, bias, at)
                    step[vb, vg, vk, vd] = dt[0]
                    for n in range(N):
                        state[vb, vg, vd, n] = (
                            decay(reset, vb, time_of(start, vk), dt[0] * A[vg, vd, n])
                            * state[vb, vg, vd, n]
                            + dt[0] * load(B, (vb, vg, n, time_of(start, vk))) * load(u, at)
                        )
                        history[vb, vg, vk + 1, n, vd] = state[vb, vg, vd, n]
        for b, g, d in T.grid(nb, ng, nd):
            for k in range(nk):
                with T.sblock("back"):
                    vb, vg, vd = T.axis.remap("SSS", [b, g, d])
                    vr = T.axis.scan(nk, k)
                    vk = T.meta_var(nk - 1 - vr)
                    time = T.meta_var(time_of(start, vk))
                    at = T.meta_var((vb, vg, vd, time))
                    grad = T.sblock_alloc_buffer((1,), wide)
                    to_u = T.sblock_alloc_buffer((1,), wide)
                    to_dt = T.sblock_alloc_buffer((1,), wide)
                    y = T.sblock_alloc_buffer((1,), wide)
                    dt = T.meta_var(step[vb, vg, vk, vd])
                    grad[0] = incoming(g_out, z, at)
                    to_u[0] = const(0, wide)
                    to_dt[0] = const(0, wide)
                    y[0] = const(0, wide)
                    for n in range(N):
                        total = T.meta_var(
                            carry[vb, vg, vd, n] + grad[0] * load(C, (vb, vg, n, time))
                        )
                        keep = T.meta_var(decay(reset, vb, time, dt * A[vg, vd, n]))
                        b_n = T.meta_var(load(B, (vb, vg, n, time)))
                        adjoint[vb, vg, vk, n, vd] = total
                        through[vb, vg, vk, n, vd] = (
                            total * keep * history[vb, vg, vk, n, vd]
                        )
                        to_u[0] = to_u[0] + total * b_n
                        to_dt[0] = (
                            to_dt[0] + total * keep * history[vb, vg, vk, n, vd] * A[vg, vd, n]
                        )
                        y[0] = y[0] + history[vb, vg, vk + 1, n, vd] * load(C, (vb, vg, n, time))
                        carry[vb, vg, vd, n] = keep * total
                    g_u[at] = cast(to_u[0] * dt + skip(D, at, grad[0]), wide, dtype)
                    g_delta[at] = cast(
                        (to_dt[0] + to_u[0] * load(u, at)) * slope(delta, bias, at), wide, dtype
                    )
                    if has_z:
                        g_z[at] = cast(
                            load(g_out, at)
                            * (y[0] + skip(D, at, load(u, at)))
                            * sigmoid(load(z, at))
                            * (const(1, wide) + load(z, at) * (const(1, wide) - sigmoid(load(z, at)))),
                            wide,
                            dtype,
                        )

    names = ["start", "u", "delta", "A", "B", "C", *option.names(), "head", "g_out", "carry"]
    names += ["history", "adjoint", "through", "step", "g_u", "g_delta"]
    names += ["g_z"] if has_z else []
    return bind_steps(keep_parameters(main, names), steps)
