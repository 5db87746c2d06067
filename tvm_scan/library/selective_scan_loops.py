"""The loops of `selective_scan`, each one plain loop nest.

The state of a lane is `states` numbers, kept in place; the history of states is never stored.
The annotations below are evaluated by the script parser (see `cumulative`).
"""

from dataclasses import dataclass

from tvm import tirx
from tvm.script import tirx as T

from .arguments import Expr, alloc_state


def softplus_expr(x: Expr, dtype: str) -> Expr:
    """``log(1 + exp(x))`` as ``max(x, 0) + log1p(exp(-|x|))``: no overflow, no lost small value.

    ``log1p`` is a library function on both the CPU and CUDA; ``log(1 + e)`` would lose ``e``
    below the rounding unit, and with it the relative accuracy of small step sizes.
    """
    return T.max(x, tirx.const(0, dtype)) + T.log1p(T.exp(-T.abs(x)))


def silu_expr(z: Expr, dtype: str) -> Expr:
    """``z * sigmoid(z)`` as ``z / (1 + exp(-z))``, which tends to -0 without NaN for large -z."""
    return z / (tirx.const(1, dtype) + T.exp(-z))


@dataclass(frozen=True)
class SelectiveScanForm:
    """The checked options of one selective scan."""

    batch: Expr
    channels: Expr
    length: Expr
    states: Expr
    dtype: str
    layout: str
    has_bias: bool
    softplus: bool
    has_D: bool
    has_z: bool
    initial_state: bool
    final_state: bool
    attrs: dict[str, object]

    @property
    def sequence_shape(self) -> tuple[Expr, ...]:
        """The shape of u, delta, z and the output."""
        return self.at(self.batch, self.channels, self.length)

    @property
    def projection_shape(self) -> tuple[Expr, ...]:
        """The shape of B and C."""
        return self.at(self.batch, self.states, self.length)

    @property
    def state_shape(self) -> tuple[Expr, ...]:
        """The shape of the initial, kept and final state."""
        return (self.batch, self.channels, self.states)

    @property
    def wide(self) -> str:
        """The dtype of A, D, the bias and the states, in which a step is computed."""
        return "float32" if self.dtype in ("float16", "bfloat16") else self.dtype

    def load(self, value: Expr) -> Expr:
        """Widen an element of a sequence."""
        return value if self.dtype == self.wide else tirx.Cast(self.wide, value)

    def at(self, b: Expr, i: Expr, t: Expr) -> tuple[Expr, ...]:
        """Return the indices in a sequence: `i` is a channel, or a state index in B and C."""
        return (b, i, t) if self.layout == "bdl" else (b, t, i)

    def step_size(self, delta: Expr, bias: tirx.Var, d: Expr) -> Expr:
        """Write the discretisation step: delta, plus its bias, through softplus."""
        biased = self.load(delta) + bias[d] if self.has_bias else self.load(delta)
        return softplus_expr(biased, self.wide) if self.softplus else biased

    def initial(self, h0: tirx.Var, index: tuple[Expr, ...]) -> Expr:
        """Return the state before the first step."""
        return h0[index] if self.initial_state else tirx.const(0, self.wide)

    def finish(
        self, y: Expr, D: tirx.Var, d: Expr, u: Expr, z: tirx.Var, where: tuple[Expr, ...]
    ) -> Expr:
        """Add the skip connection and apply the gate."""
        skipped = y + D[d] * self.load(u) if self.has_D else y
        gated = skipped * silu_expr(self.load(z[where]), self.wide) if self.has_z else skipped
        return gated if self.dtype == self.wide else tirx.Cast(self.dtype, gated)


def blocks_loop(form: SelectiveScanForm) -> tirx.PrimFunc:
    """Build the nest with one block per formula: step size, state, contraction, output."""
    nb, nd, nl, nn, dtype = form.batch, form.channels, form.length, form.states, form.dtype
    at, attrs, final_state = form.at, form.attrs, form.final_state
    step_size, initial, finish = form.step_size, form.initial, form.finish
    wide, load = form.wide, form.load

    @T.prim_func(s_tir=True)
    def selective_scan(
        u: T.Buffer(form.sequence_shape, dtype),
        delta: T.Buffer(form.sequence_shape, dtype),
        A: T.Buffer((nd, nn), wide),
        B: T.Buffer(form.projection_shape, dtype),
        C: T.Buffer(form.projection_shape, dtype),
        D: T.Buffer((nd,), wide),
        z: T.Buffer(form.sequence_shape, dtype),
        delta_bias: T.Buffer((nd,), wide),
        h0: T.Buffer(form.state_shape, wide),
        out: T.Buffer(form.sequence_shape, dtype),
        h_final: T.Buffer(form.state_shape, wide),
    ) -> None:
        T.func_attr(attrs)
        h = T.meta_var(h_final if final_state else alloc_state(form.state_shape, wide))
        dt = T.sblock_alloc_buffer((nb, nd), wide)
        y = T.sblock_alloc_buffer((nb, nd), wide)
        for b, d in T.grid(nb, nd):
            for n in range(nn):
                with T.sblock("init"):
                    vb, vd, vn = T.axis.remap("SSS", [b, d, n])
                    h[vb, vd, vn] = initial(h0, (vb, vd, vn))
            for t in range(nl):
                with T.sblock("step_size"):
                    vb, vd = T.axis.remap("SS", [b, d])
                    vt = T.axis.scan(nl, t)
                    dt[vb, vd] = step_size(delta[at(vb, vd, vt)], delta_bias, vd)
                for n in range(nn):
                    with T.sblock("state"):
                        vb, vd = T.axis.remap("SS", [b, d])
                        vt = T.axis.scan(nl, t)
                        vn = T.axis.spatial(nn, n)
                        h[vb, vd, vn] = T.exp(dt[vb, vd] * A[vd, vn]) * h[vb, vd, vn] + dt[
                            vb, vd
                        ] * load(B[at(vb, vn, vt)]) * load(u[at(vb, vd, vt)])
                for n in range(nn):
                    with T.sblock("contract"):
                        vb, vd = T.axis.remap("SS", [b, d])
                        vt = T.axis.scan(nl, t)
                        vn = T.axis.reduce(nn, n)
                        with T.init():
                            y[vb, vd] = tirx.const(0, wide)
                        y[vb, vd] = y[vb, vd] + h[vb, vd, vn] * load(C[at(vb, vn, vt)])
                with T.sblock("output"):
                    vb, vd = T.axis.remap("SS", [b, d])
                    vt = T.axis.scan(nl, t)
                    out[at(vb, vd, vt)] = finish(
                        y[vb, vd], D, vd, u[at(vb, vd, vt)], z, at(vb, vd, vt)
                    )

    return selective_scan


def step_loop(form: SelectiveScanForm) -> tirx.PrimFunc:
    """Build the nest with one block per time step, whose body loops over the states."""
    nb, nd, nl, nn, dtype = form.batch, form.channels, form.length, form.states, form.dtype
    at, attrs, final_state = form.at, form.attrs, form.final_state
    step_size, initial, finish = form.step_size, form.initial, form.finish
    wide, load = form.wide, form.load

    @T.prim_func(s_tir=True)
    def selective_scan(
        u: T.Buffer(form.sequence_shape, dtype),
        delta: T.Buffer(form.sequence_shape, dtype),
        A: T.Buffer((nd, nn), wide),
        B: T.Buffer(form.projection_shape, dtype),
        C: T.Buffer(form.projection_shape, dtype),
        D: T.Buffer((nd,), wide),
        z: T.Buffer(form.sequence_shape, dtype),
        delta_bias: T.Buffer((nd,), wide),
        h0: T.Buffer(form.state_shape, wide),
        out: T.Buffer(form.sequence_shape, dtype),
        h_final: T.Buffer(form.state_shape, wide),
    ) -> None:
        T.func_attr(attrs)
        h = T.meta_var(h_final if final_state else alloc_state(form.state_shape, wide))
        for b, d in T.grid(nb, nd):
            with T.sblock("init"):
                vb, vd = T.axis.remap("SS", [b, d])
                for n in range(nn):
                    h[vb, vd, n] = initial(h0, (vb, vd, n))
            for t in range(nl):
                with T.sblock("step"):
                    vb, vd = T.axis.remap("SS", [b, d])
                    vt = T.axis.scan(nl, t)
                    dt = T.sblock_alloc_buffer((1,), wide)
                    y = T.sblock_alloc_buffer((1,), wide)
                    dt[0] = step_size(delta[at(vb, vd, vt)], delta_bias, vd)
                    y[0] = tirx.const(0, wide)
                    for n in range(nn):
                        h[vb, vd, n] = T.exp(dt[0] * A[vd, n]) * h[vb, vd, n] + dt[0] * load(
                            B[at(vb, n, vt)]
                        ) * load(u[at(vb, vd, vt)])
                        y[0] = y[0] + h[vb, vd, n] * load(C[at(vb, n, vt)])
                    out[at(vb, vd, vt)] = finish(y[0], D, vd, u[at(vb, vd, vt)], z, at(vb, vd, vt))

    return selective_scan
