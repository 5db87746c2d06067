"""The adjoint of the selective scan, chunk by chunk; see `selective`."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.script.ir_builder import tirx as T

from tvm_scan import tir
from tvm_scan.library.selective_scan_loops import silu_expr
from tvm_scan.loops.selective import Lane, Selective
from tvm_scan.loops.writer import Cells, Loop, const

#: Partial sums that a sum over channels keeps.
_WIDTH = 16


def selective_backward_chunk(
    batch: Expr,
    groups: Expr,
    channels: Expr,
    length: Expr,
    steps: Expr,
    *,
    sums: bool,
    **options: Any,
) -> tirx.PrimFunc:
    """Build the adjoint of `steps` steps from `start`, two recurrences and two sums.

    ``chunk(start, steps, u, delta, A, B, C, [D, z, bias, reset,] head, g_out, carry, history,
    adjoint, step, drive, gated, g_A, g_u, g_delta, [g_z,] [g_B,] [g_C,] [g_D,] [g_bias])``.
    Sequences have time before channels, (batch, groups, length, channels), B and C (batch,
    groups, length, states): channels a page of memory apart would evict each other from the
    cache. B or C that are fixed in time are (groups, channels, states).

    The first recurrence runs forward from the state `head` and fills ``history`` with the states
    of this chunk alone; the second runs back, with the adjoint of the state in ``carry``, from
    after this chunk to before it, and the gradient of A, to which every chunk adds. Of each step
    it leaves ``adjoint`` (that of the state), ``step`` (dt), ``drive`` (dt u) and ``gated`` (that
    of the output before the gate). Sums over channels of these are the gradients of B and C, sums
    over time are added to those of D and the bias; without `sums` both are left to the caller.
    To the gradient of what is fixed in time every chunk adds, as to that of A. The other options
    are those of `Selective`.
    """
    with Loop() as loop:
        chunk = _Chunk(loop, (batch, groups, channels), length, steps, sums, options)
        chunk.again()
        chunk.back()
        if sums and not (options.get("fixed_B") and options.get("fixed_C")):
            chunk.sums_over_channels()
        if sums:
            chunk.sums_over_time()
    return loop.func


class _Chunk:
    """The parameters of the adjoint, and its four parts."""

    def __init__(
        self,
        loop: Loop,
        lanes: Lane,
        length: Expr,
        steps: Expr,
        sums: bool,
        options: dict[str, Any],
    ) -> None:
        self.loop, self.lanes, self.steps = loop, lanes, steps
        self.states, self.dtype = options["states"], options["dtype"]
        self.forward = Selective(loop, lanes, length, steps, time_last=False, **options)
        batch, groups, channels = lanes
        states, sequence = (*lanes, self.states), self.forward.sequence
        per_step, rows = (batch, groups, steps, channels), (self.states, channels)

        def array(name: str, shape: Any, present: bool = True) -> Any:
            return loop.array(name, shape, self.dtype) if present else None

        self.head, self.g_out = array("head", states), array("g_out", sequence)
        self.carry = array("carry", states)
        self.history = array("history", (batch, groups, steps + 1, *rows))
        self.adjoint = array("adjoint", (batch, groups, steps, *rows))
        self.step, self.drive = array("step", per_step), array("drive", per_step)
        self.gated, self.g_A = array("gated", per_step), array("g_A", states)
        self.g_u, self.g_delta = array("g_u", sequence), array("g_delta", sequence)
        self.g_z: Cells | None = array("g_z", sequence, options["has_z"])
        projection, fixed = self.forward.projection, self.forward.fixed
        self.g_B, self.g_C = (
            array(f"g_{name}", states if fixed[name] else projection, sums or fixed[name])
            for name in "BC"
        )
        self.g_D: Cells | None = array("g_D", (groups, channels), sums and options["has_D"])
        has_bias = sums and options["has_bias"]
        self.g_bias: Cells | None = array("g_bias", (groups, channels), has_bias)

    def again(self) -> None:
        """Scan forward and keep the states."""
        loop, forward, u, A = self.loop, self.forward, self.forward.u, self.forward.A
        state, history = loop.state((*self.lanes, self.states), self.dtype), self.history
        with loop.lanes("bgd", *self.lanes):
            with loop.begin("head") as (b, g, d), loop.over(self.states) as n:
                state[b, g, d, n] = self.head[b, g, d, n]
                history[b, g, 0, n, d] = self.head[b, g, d, n]
            with loop.steps(self.steps, "again") as (lane, k):
                b, g, d = lane
                dt, time = loop.cell("dt", self.dtype), forward.time(k)
                at = forward.at(lane, time)
                dt[0] = forward.step_size(lane, time)
                self.step[b, g, k, d] = dt[0]
                self.drive[b, g, k, d] = dt[0] * u[at]
                with loop.over(self.states) as n:
                    decayed = tirx.exp(dt[0] * A[g, d, n]) * state[b, g, d, n]
                    added = dt[0] * forward.projected("B", lane, n, time) * u[at]
                    state[b, g, d, n] = forward.passed(lane, time, decayed) + added
                    history[b, g, k + 1, n, d] = state[b, g, d, n]

    def back(self) -> None:
        """Scan back with the adjoint of the state."""
        loop, forward, history = self.loop, self.forward, self.history
        with (
            loop.lanes("bgd", *self.lanes),
            loop.steps(self.steps, "back") as (lane, step),
        ):
            (b, g, d), k = lane, self.steps - 1 - step
            time, dt = forward.time(k), self.step[b, g, k, d]
            at = forward.at(lane, time)
            names = ("grad", "to_u", "to_dt", "y", "total", "back", "passed")
            grad, to_u, to_dt, y, total, back, passed = (
                loop.cell(name, self.dtype) for name in names
            )
            z, g_out = forward.z, self.g_out
            grad[0] = g_out[at] if z is None else g_out[at] * silu_expr(z[at], self.dtype)
            self.gated[b, g, k, d] = grad[0]
            to_u[0], to_dt[0], y[0] = 0, 0, 0
            with loop.over(self.states) as n:
                state, B, C = (
                    (*lane, n),
                    forward.projected("B", lane, n, time),
                    forward.projected("C", lane, n, time),
                )
                # Values in cells of their own, or every use would compute them again.
                total[0] = self.carry[state] + grad[0] * C
                back[0] = forward.passed(lane, time, total[0] * tirx.exp(dt * forward.A[g, d, n]))
                # Not zero times the history, which is another sequence's.
                passed[0] = forward.passed(lane, time, back[0] * history[b, g, k, n, d])
                self.adjoint[b, g, k, n, d] = total[0]
                self.g_A[state] = self.g_A[state] + passed[0] * dt
                if forward.fixed["B"]:
                    self.g_B[state] = self.g_B[state] + total[0] * self.drive[b, g, k, d]
                if forward.fixed["C"]:
                    self.g_C[state] = self.g_C[state] + history[b, g, k + 1, n, d] * grad[0]
                to_u[0] = to_u[0] + total[0] * B
                to_dt[0] = to_dt[0] + passed[0] * forward.A[g, d, n]
                if z is not None:
                    y[0] = y[0] + history[b, g, k + 1, n, d] * C
                self.carry[state] = back[0]
            self.g_u[at] = to_u[0] * dt + self._skip(lane, grad[0])
            self.g_delta[at] = (to_dt[0] + to_u[0] * forward.u[at]) * forward.slope(lane, time)
            if z is not None and self.g_z is not None:
                one = const(1, self.dtype)
                open_ = one / (one + tirx.exp(-z[at]))
                out = y[0] + self._skip(lane, forward.u[at])
                self.g_z[at] = g_out[at] * out * open_ * (one + z[at] * (one - open_))

    def _skip(self, lane: Lane, value: Expr) -> Expr:
        D = self.forward.D
        return const(0, self.dtype) if D is None else D[lane[1:]] * value

    def sums_over_channels(self) -> None:
        """Sum up the gradients of B and C, of each step."""
        loop, forward = self.loop, self.forward
        batch, groups, channels = self.lanes
        with loop.parallel(batch * groups * self.steps, "sums_over_channels") as r:
            parts = [loop.cell(name, self.dtype, _WIDTH) for name in ("at_B", "at_C")]
            b, g, k = r // (groups * self.steps), r // self.steps % groups, r % self.steps
            with loop.over(self.states) as n:

                def add(lane: Any, d: Expr) -> None:
                    adjoint, drive = self.adjoint[b, g, k, n, d], self.drive[b, g, k, d]
                    history, gated = self.history[b, g, k + 1, n, d], self.gated[b, g, k, d]
                    parts[0][lane] = parts[0][lane] + adjoint * drive
                    parts[1][lane] = parts[1][lane] + history * gated

                with loop.over(_WIDTH, "v", T.vectorized) as v:
                    parts[0][v], parts[1][v] = 0, 0
                with loop.vectors(channels, _WIDTH, "cv") as (v, d):
                    add(v, d)
                with loop.over(channels % _WIDTH, "c") as c:
                    add(0, channels - 1 - c)
                for name, sums, part in zip("BC", (self.g_B, self.g_C), parts, strict=True):
                    if not forward.fixed[name]:
                        total = tir.sum_by_pairs([part[i] for i in range(_WIDTH)])
                        sums[forward.at((b, g, n), forward.time(k))] = total

    def sums_over_time(self) -> None:
        """Add to the gradients of D and the bias."""
        loop, forward = self.loop, self.forward
        batch, groups, channels = self.lanes
        with (
            loop.parallel(groups, "sums_over_time") as g,
            T.grid(batch, self.steps, channels) as (b, k, d),
        ):
            at = forward.at((b, g, d), forward.time(k))
            if self.g_bias is not None:
                self.g_bias[g, d] = self.g_bias[g, d] + self.g_delta[at]
            if self.g_D is not None:
                self.g_D[g, d] = self.g_D[g, d] + self.gated[b, g, k, d] * forward.u[at]
