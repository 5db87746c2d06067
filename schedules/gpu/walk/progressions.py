"""Gates whose exponents lie in equal steps along the states: powers instead of exponentials.

Where ``a[s] = a[0] + s d`` over a thread's states, the gates ``exp2(x a[s])`` of a step are ``g``,
``g r``, ``g r^2``, .. with ``g = exp2(x a[0])`` and ``r = exp2(x d)``: two exponentials, and a
product for each state but the first, where each takes a product and an exponential else. Mamba
begins with ``A[d, n] = -(n + 1)``, the S4D-Real of A. Gu, A. Gupta, K. Goel and C. Re (2022, arXiv
2206.11893; Gu and Dao 2023, arXiv 2312.00752, section 3.6).

If the owner of a step leaves ``x`` for all threads of its lane, these have one ``d``, and it leaves
``x d``: ``g = exp2((x d) (a[0] / d))``, and a product less.

Whether it is so the kernel finds out, once, from the values that it has loaded: a warp whose
threads all have such states takes the one way through a group of steps, and else the other way.

Theorem (range). Let ``d`` have the sign of ``a[0]``. Then ``x a[s]`` leads away from zero with
``s``, so that no product over- or underflows before the last one unless the last one does.

Theorem (error). A gate ``exp(-t)``, off by a share ``e`` of ``t``, is off by ``e t``, and the state
that a steady input takes it to by ``e t / (exp(t) - 1) <= e``. So exponents that are off by ``e``
cost a share ``e`` of a state: 2^-21 at most, four ulp, where ``-exp(log(n + 1))`` in float32 is
off by one; and 2^-23 where ``x d`` and ``a[0] / d`` are rounded. Of ``s`` products the gate is off
by ``2 + 2.5 s`` ulp at most, two of each exponential and a half of each product, and
``t >= s x |d|``: the state is off by no more than that of the gate ``exp2(x d)`` alone if this one
is off by 4.5 ulp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.schedules.common.ir import int_const, local
from tvm_scan.schedules.gpu.shared.state_loads import StateLoads
from tvm_scan.schedules.gpu.thread.registers import cell_of, set_cell
from tvm_scan.schedules.gpu.walk.exponentials import BaseTwo, bare_exp2, is_exp2, iterations
from tvm_scan.schedules.gpu.warp.shuffles import shuffled
from tvm_scan.schedules.machine.terms import all_of_warp

#: States of a thread for which the other way through a step pays.
LEAST_STATES = 8
#: What an exponent may be off by, as a share of it.
_OFF = 2.0**-21
_F32 = "float32"


class Progressions:
    """Exponents of a thread that may lie in equal steps, and the gates of a step that they give.

    Parameters
    ----------
    base_two : BaseTwo
        The loops over the states.
    loads : StateLoads
        Registers of what they load.
    states_each : int
        States of a thread.
    threads : int
        Threads for which the owner of a step leaves what the loops read of it; 1 if it leaves none.
    """

    def __init__(
        self, base_two: BaseTwo, loads: StateLoads, states_each: int, threads: int
    ) -> None:
        self.states_each, self._threads = states_each, threads
        self._all: list[_Progression] = []
        for load in base_two.scaled if states_each >= LEAST_STATES else ():
            registers = loads.registers_of(load)
            factors = _factors(base_two.loops, load)
            if registers is None or len(tir.each_once(factors)) != 1:
                continue
            sent = threads > 1 and _is_alone(base_two.loops, factors)
            self._all.append(
                _Progression(registers, load.source.name, factors[0] if sent else None)
            )
        self._holds = local("in_steps", [1], "int32")

    @property
    def is_empty(self) -> bool:
        """Return whether no gate has such exponents."""
        return not self._all

    @property
    def buffers(self) -> list[Var]:
        """Registers to allocate."""
        if self.is_empty:
            return []
        return [self._holds, *(b for part in self._all for b in part.buffers)]

    @property
    def holds(self) -> Any:
        """The condition that the exponents of all threads of the warp lie in equal steps."""
        return tirx.NE(cell_of(self._holds), int_const(0, "int32"))

    def begin(self) -> list[Any]:
        """Compare, before the first step and after the exponents are loaded."""
        if self.is_empty:
            return []
        stmts, conditions = [], []
        for part in self._all:
            step = part.mean_step(self.states_each)
            if part.sent is None:
                stmts.append(set_cell(part.step, step))
            else:
                stmts.append(set_cell(part.step, shuffled("", step, 0, self._threads)))
                steps = cell_of(part.exponents) / cell_of(part.step)
                stmts.append(set_cell(part.steps, steps))
            conditions += part.conditions(self.states_each)
        return [*stmts, set_cell(self._holds, all_of_warp(tir.all_of(conditions)))]

    def sent(self, load: Any, value: Any) -> Any:
        """Return what the owner of a step sends for ``value``, which the loops read as ``load``."""
        for part in self._all:
            if part.sent is not None and load.source.same_as(part.sent.source):
                return value * cell_of(part.step)
        return value

    def applied(self, loop: tirx.For) -> Any:
        """A loop over a thread's states with powers; other exponentials by their instruction."""
        counter, parts = loop.loop_var, []
        used: list[tuple[_Progression, Any]] = []

        def on_call(call: Call) -> Any:
            if not is_exp2(call):
                return call
            for part in self._all:
                factor = part.factor_of(call.args[0], counter)
                if factor is not None:
                    if not any(part is other for other, _ in used):
                        used.append((part, factor))
                    return cell_of(part.gate)
            return bare_exp2(call.args[0])

        body = tvm_ffi.structural_map(loop.body, (Call, on_call))
        changed = tirx.For(counter, loop.min, loop.extent, loop.kind, body)
        if not used:
            return changed
        for part, factor in used:
            first, step = factor * cell_of(part.exponents), factor * cell_of(part.step)
            if part.sent is not None:
                first, step = factor * cell_of(part.steps), factor
            parts.append(set_cell(part.gate, bare_exp2(first)))
            parts.append(set_cell(part.ratio, bare_exp2(step)))
        next_gates = tir.seq(
            [set_cell(part.gate, cell_of(part.gate) * cell_of(part.ratio)) for part, _ in used]
        )
        return tir.seq(
            [
                *parts,
                iterations(changed, 0, 1),
                iterations(changed, 1, self.states_each, next_gates),
            ]
        )


class _Progression:
    """Exponents of a thread: registers for them, their step, a gate, and the ratio of two.

    ``sent`` is the ``x`` of a step in the place of which its owner sends ``x d``, if it does:
    threads then need to know how many steps ``d`` their first exponent is.
    """

    def __init__(self, exponents: Var, name: str, sent: TensorLoad | None) -> None:
        self.exponents, self.sent = exponents, sent
        self.step, self.steps, self.gate, self.ratio = (
            local(f"{name}_{what}", [1], _F32) for what in ("step", "steps", "power", "ratio")
        )

    @property
    def buffers(self) -> list[Var]:
        counted = [] if self.sent is None else [self.steps]
        return [self.step, *counted, self.gate, self.ratio]

    def mean_step(self, count: int) -> Any:
        last = cell_of(self.exponents, count - 1)
        return (last - cell_of(self.exponents)) * tirx.FloatImm(_F32, 1 / (count - 1))

    def conditions(self, count: int) -> list[Any]:
        """The step has the sign of the exponents, and each is where it has to be."""
        first, step, zero = cell_of(self.exponents), cell_of(self.step), tirx.FloatImm(_F32, 0.0)
        held = [first * step > zero]
        # The last one is where its own step puts it.
        for s in range(1, count - 1 if self.sent is None else count):
            exponent = cell_of(self.exponents, s)
            due = first + step * tirx.FloatImm(_F32, float(s))
            # Neither holds of infinities or NaN.
            held.append(tirx.abs(exponent - due) < tirx.abs(due) * tirx.FloatImm(_F32, _OFF))
        return held

    def factor_of(self, product: Any, counter: Var) -> Any:
        """``x`` of ``x a[counter]``; None for other expressions."""
        if not isinstance(product, tirx.Mul):
            return None
        for factor, exponent in ((product.a, product.b), (product.b, product.a)):
            while isinstance(exponent, tirx.Cast):
                exponent = exponent.value
            if not isinstance(exponent, TensorLoad) or not exponent.source.same_as(self.exponents):
                continue
            return factor if exponent.indices[0].same_as(counter) else None
        return None


def _factors(loops: Sequence[tirx.For], load: TensorLoad) -> list[Any]:
    """``x`` of all exponents ``x a`` of a load ``a``; nothing if a state changes one."""
    factors: list[Any] = []
    varies = False
    for part in loops:
        written = tir.buffers_stored(part.body)

        def on_call(call: Call, part: Any = part, written: Any = written) -> None:
            nonlocal varies
            if not is_exp2(call) or load.source not in tir.buffers_loaded(call):
                return
            sides = (call.args[0].a, call.args[0].b)
            rest = [side for side in sides if load.source not in tir.buffers_loaded(side)]
            changes = any(b in written for side in rest for b in tir.buffers_loaded(side).keys())
            if len(rest) != 1 or changes or tir.contains_var(rest[0], [part.loop_var]):
                varies = True
            else:
                factors.append(rest[0])

        tvm_ffi.structural_walk(part, [(Call, on_call)])
    return [] if varies else factors


def _is_alone(loops: Sequence[tirx.For], factors: Sequence[Any]) -> bool:
    """Return whether the loops read such a factor, one load of float32, nowhere else."""
    first = factors[0]
    if not isinstance(first, TensorLoad) or tir.dtype_of(first) != _F32:
        return False
    reads = [load for load in tir.loads(tir.seq(loops)) if load.source.same_as(first.source)]
    return len(reads) == len(factors)
