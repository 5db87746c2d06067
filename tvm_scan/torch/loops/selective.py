"""The selective scan.

Arrays are (batch, groups, channels, length), B and C (batch, groups, states, length): the
channels of a group share B and C. The annotations are evaluated by the script parser.
"""

from dataclasses import dataclass

from tvm import tirx
from tvm.script import tirx as T

from tvm_scan.library.arguments import Expr, keep_parameters
from tvm_scan.library.selective_scan_loops import silu_expr, softplus_expr

from .frame import ATTRS, bind_steps, cast, const, unless

__all__ = ["Options", "selective_forward"]


@dataclass(frozen=True)
class Options:
    """Constants of a kernel, and the terms of its step."""

    dtype: str
    wide: str
    softplus: bool
    has_bias: bool
    has_D: bool
    has_z: bool
    has_reset: bool
    fixed_B: bool
    fixed_C: bool

    def load(self, buffer: tirx.Var, where: tuple[Expr, ...]) -> Expr:
        """Load a value in the carry's dtype."""
        return cast(buffer[where], self.dtype, self.wide)

    def biased(self, delta: Expr, bias: tirx.Var, g: Expr, d: Expr) -> Expr:
        """Add the bias to delta."""
        return delta + bias[g, d] if self.has_bias else delta

    def step_size(self, delta: Expr, bias: tirx.Var, g: Expr, d: Expr) -> Expr:
        """The size of a step, which delta stands for."""
        value = self.biased(delta, bias, g, d)
        return softplus_expr(value, self.wide) if self.softplus else value

    def slope(self, delta: Expr, bias: tirx.Var, g: Expr, d: Expr) -> Expr:
        """Derivative of the step size with respect to delta: the sigmoid, without overflow."""
        if not self.softplus:
            return const(1, self.wide)
        value = self.biased(delta, bias, g, d)
        small = T.exp(-T.abs(value))
        top = T.Select(value >= const(0, self.wide), const(1, self.wide), small)
        return top / (const(1, self.wide) + small)

    def kept(self, reset: tirx.Var, b: Expr, time: Expr, value: Expr) -> Expr:
        """The value that passes the gate of a step: 0 where the state starts anew."""
        return unless(reset, (b, time), value, self.wide, self.has_reset)

    def names(self) -> list[str]:
        """Names of the parameters that only some kernels have."""
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
    fixed_B: bool = False,
    fixed_C: bool = False,
) -> tirx.PrimFunc:
    """Build ``forward(start, steps, u, delta, A, B, C, [D, z, bias, reset,] head, out, tail)``.

    ``h = exp(dt A) h + dt B u; y = C . h + D u; out = y silu(z)`` for `steps` steps from the
    step `start`, from the state `head` to the state `tail`. B or C that are fixed in time are
    (groups, channels, states).
    """
    wide = _wide(dtype)
    option = Options(dtype, wide, softplus, has_bias, has_D, has_z, has_reset, fixed_B, fixed_C)
    nb, ng, nd, nl, nk, N = batch, groups, channels, length, steps, states
    load, kept = option.load, option.kept
    sequence, projection, state = (nb, ng, nd, nl), (nb, ng, N, nl), (nb, ng, nd, N)

    shapes = {fixed: (ng, nd, N) if fixed else projection for fixed in (False, True)}

    def projected(fixed: bool, b: Expr, g: Expr, d: Expr, n: Expr, time: Expr) -> tuple[Expr, ...]:
        return (g, d, n) if fixed else (b, g, n, time)

    def time_of(start: Expr, step: Expr) -> Expr:
        return nl - 1 - start - step if reverse else start + step

    def finish(y: Expr, u: Expr, D: tirx.Var, z: tirx.Var, where: tuple[Expr, ...]) -> Expr:
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
        B: T.Buffer(shapes[fixed_B], dtype),
        C: T.Buffer(shapes[fixed_C], dtype),
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
                    dt[0] = option.step_size(load(delta, at), bias, vg, vd)
                    y[0] = const(0, wide)
                    for n in range(N):
                        passed = T.meta_var(T.exp(dt[0] * A[vg, vd, n]) * tail[vb, vg, vd, n])
                        tail[vb, vg, vd, n] = kept(reset, vb, time, passed) + dt[0] * load(
                            B, projected(fixed_B, vb, vg, vd, n, time)
                        ) * load(u, at)
                        y[0] = y[0] + tail[vb, vg, vd, n] * load(
                            C, projected(fixed_C, vb, vg, vd, n, time)
                        )
                    out[at] = finish(y[0], load(u, at), D, z, at)

    names = ["start", "u", "delta", "A", "B", "C", *option.names(), "head", "out", "tail"]
    return bind_steps(keep_parameters(main, names), steps)
