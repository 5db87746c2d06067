"""The selective scan: what it reads, the terms of a step, and its loop."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvm_scan import tir
from tvm_scan.library.selective_scan_loops import silu_expr, softplus_expr
from tvm_scan.loops.writer import Cells, Loop, const, unless

Lane = tuple[Expr, Expr, Expr]


class Selective:
    """The parameters that the scan and its adjoint read, and the terms of a step.

    Parameters
    ----------
    loop : Loop
        To which they are added, in the order ``start, steps, u, delta, A, B, C, [D, z, bias,
        reset]``.
    lanes : tuple of Expr
        Extents (batch, groups, channels); the channels of a group share B and C.
    length, steps : Expr
        Extent of time, and how many steps the loop takes.
    states : int
        States of a channel.
    dtype : str
        Of the sequences; halves are computed in float32, the dtype of all else.
    time_last : bool
        Whether sequences are (batch, groups, channels, length), B and C (batch, groups, states,
        length), or (batch, groups, length, channels) and (batch, groups, length, states).
    softplus, reverse : bool
        Whether the step size goes through softplus; whether to scan from the last step.
    has_bias, has_D, has_z, has_reset : bool
        Whether there is such a parameter.
    fixed_B, fixed_C : bool
        Whether it is fixed in time, (groups, channels, states).
    """

    def __init__(
        self,
        loop: Loop,
        lanes: Lane,
        length: Expr,
        steps: Expr,
        *,
        states: int,
        dtype: str,
        time_last: bool,
        softplus: bool,
        reverse: bool,
        has_bias: bool,
        has_D: bool,
        has_z: bool,
        has_reset: bool,
        fixed_B: bool = False,
        fixed_C: bool = False,
    ) -> None:
        batch, groups, channels = lanes
        self.wide = wide = tir.wide_dtype(dtype)
        self._softplus, self._reverse, self._time_last = softplus, reverse, time_last
        self._length, self.fixed = length, {"B": fixed_B, "C": fixed_C}
        self.sequence = sequence = self.at(lanes, length)
        self.projection = self.at((batch, groups, states), length)
        self.start, self.steps = loop.number("start"), loop.number("steps", steps)

        def array(name: str, shape: Any, dtype: str, present: bool = True) -> Any:
            return loop.array(name, shape, dtype, wide) if present else None

        self.u, self.delta = (array(name, sequence, dtype) for name in ("u", "delta"))
        self.A = array("A", (groups, channels, states), wide)
        self.B, self.C = (
            array(name, (groups, channels, states) if fixed else self.projection, dtype)
            for name, fixed in self.fixed.items()
        )
        self.D: Cells | None = array("D", (groups, channels), wide, has_D)
        self.z: Cells | None = array("z", sequence, dtype, has_z)
        self.bias: Cells | None = array("bias", (groups, channels), wide, has_bias)
        self.reset = loop.array("reset", (batch, length), "int8") if has_reset else None

    def at(self, lane: Lane, time: Expr) -> tuple[Expr, ...]:
        """Return the indices of a sequence, or of a projection with a state for the channel."""
        b, g, i = lane
        return (b, g, i, time) if self._time_last else (b, g, time, i)

    def time(self, step: Expr) -> Expr:
        """Return the index in time that the loop reaches at `step`."""
        return self._length - 1 - self.start - step if self._reverse else self.start + step

    def projected(self, name: str, lane: Lane, n: Expr, time: Expr) -> Expr:
        """Read B or C."""
        b, g, d = lane
        array = self.B if name == "B" else self.C
        return array[(g, d, n) if self.fixed[name] else self.at((b, g, n), time)]

    def _biased(self, lane: Lane, time: Expr) -> Expr:
        delta = self.delta[self.at(lane, time)]
        return delta if self.bias is None else delta + self.bias[lane[1:]]

    def step_size(self, lane: Lane, time: Expr) -> Expr:
        """Return the size of a step, which delta stands for."""
        value = self._biased(lane, time)
        return softplus_expr(value, self.wide) if self._softplus else value

    def slope(self, lane: Lane, time: Expr) -> Expr:
        """Return the derivative of the step size to delta: the sigmoid, without overflow."""
        if not self._softplus:
            return const(1, self.wide)
        value = self._biased(lane, time)
        small = tirx.exp(-tirx.abs(value))
        top = tirx.Select(value >= const(0, self.wide), const(1, self.wide), small)
        return top / (const(1, self.wide) + small)

    def passed(self, lane: Lane, time: Expr, value: Expr) -> Expr:
        """Return what passes the gate of a step: 0 where the state starts anew."""
        return unless(self.reset, (lane[0], time), value)


def selective_forward(
    batch: Expr, groups: Expr, channels: Expr, length: Expr, steps: Expr, **options: Any
) -> tirx.PrimFunc:
    """Build ``forward(start, steps, u, delta, A, B, C, [D, z, bias, reset,] head, out, tail)``.

    ``h = exp(dt A) h + dt B u; y = C . h + D u; out = y silu(z)`` for `steps` steps from the
    step `start`, from the state `head` to the state `tail`, (batch, groups, channels, states).
    The options are those of `Selective`.
    """
    lanes, states = (batch, groups, channels), options["states"]
    with Loop() as loop:
        arrays = Selective(loop, lanes, length, steps, time_last=True, **options)
        u, A, wide = arrays.u, arrays.A, arrays.wide
        head = loop.array("head", (*lanes, states), wide)
        out = loop.array("out", arrays.sequence, options["dtype"], wide)
        tail = loop.array("tail", (*lanes, states), wide)
        with loop.lanes("bgd", *lanes):
            with loop.begin() as lane, loop.over(states) as n:
                tail[lane, n] = head[lane, n]
            with loop.steps(steps, "step") as (lane, step):
                time = arrays.time(step)
                at, (_, g, d) = arrays.at(lane, time), lane
                dt, y = loop.cell("dt", wide), loop.cell("y", wide)
                dt[0] = arrays.step_size(lane, time)
                y[0] = 0
                with loop.over(states) as n:
                    state = (*lane, n)
                    decayed = arrays.passed(lane, time, tirx.exp(dt[0] * A[g, d, n]) * tail[state])
                    tail[state] = decayed + dt[0] * arrays.projected("B", lane, n, time) * u[at]
                    y[0] = y[0] + tail[state] * arrays.projected("C", lane, n, time)
                total = y[0] if arrays.D is None else y[0] + arrays.D[g, d] * u[at]
                out[at] = total if arrays.z is None else total * silu_expr(arrays.z[at], wide)
    return loop.func
