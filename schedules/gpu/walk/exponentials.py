"""Exponentials of a walk over states: in base 2, and a share of them without special functions.

A multiprocessor makes 16 special functions per clock, and 128 multiply-adds. ``exp(x a)``, with
``a`` a load that time does not change, becomes ``exp2(x (a log2 e))``, whose product with
``log2 e`` is made once per lane. Of these a plan may have some computed by a polynomial of degree
6 on the units that multiply and add, while others are made by the special function unit.

The latter are its bare instruction, ``ex2.approx.ftz.f32``, off by 2 ulp at most as ``exp2f`` is;
what that spends on results below 2^-126 is left out: they are zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad
from tvm.script import tirx as T

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.invariants import LOG2E, fold_exponent
from tvm_scan.schedules.common.polynomials import Pool, Values, exp2_in_range
from tvm_scan.schedules.common.state_split import NoSplit, split_of
from tvm_scan.schedules.common.uses import as_used
from tvm_scan.schedules.gpu.shared.staging import steady_loads

#: ``ScanPlan.exp_share`` counts exponentials of this many.
OF = 16
_BARE = """
__forceinline__ __device__ float scan_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
"""


@dataclass(frozen=True, eq=False)
class BaseTwo:
    """Loops over states with their exponentials in base 2.

    Attributes
    ----------
    loops : tuple of For
        The loops.
    scaled : tuple of TensorLoad
        Loads that stand in them for ``log2 e`` times their value.
    """

    loops: tuple[tirx.For, ...]
    scaled: tuple[TensorLoad, ...]

    def scale(self, load: TensorLoad, value: Any) -> Any:
        """``value``, which ``load`` loaded, as the loops take it; of a half, in float32."""
        if not any(tir.structurally_equal(load, other) for other in self.scaled):
            return value
        wide = tir.wide_dtype(tir.dtype_of(value))
        value = value if tir.dtype_of(value) == wide else tirx.Cast(wide, value)
        return value * tirx.FloatImm(wide, LOG2E)


@lru_cache(maxsize=64)
def in_base_two(loops: tuple[tirx.For, ...], recurrence: Recurrence) -> BaseTwo:
    """``exp(x a)`` as ``exp2(x a)`` where ``a`` does not change with time and is used so only."""
    parts_in_base_two, scaled = [], []
    for part in loops:
        time = [recurrence.time.var]
        for load in steady_loads(part.body, recurrence, [part.loop_var], free_of=time):
            others = [other for other in loops if not other.same_as(part)]
            if any(load.source in tir.buffers_loaded(other) for other in others):
                continue
            folded = fold_exponent(part, as_used(part, load))
            if folded is not None:
                part = folded
                scaled.append(load)
        parts_in_base_two.append(part)
    return BaseTwo(tuple(parts_in_base_two), tuple(scaled))


@lru_cache(maxsize=64)
def exponentials_in_base_two(recurrence: Recurrence) -> int:
    """Number of exponentials of a step, over all states, of which a share can be taken."""
    split = split_of(recurrence)
    if isinstance(split, NoSplit):
        return 0
    loops = in_base_two(split.loops, recurrence).loops
    return sum(map(is_exp2, tir.nodes(loops, Call))) * split.states


def is_exp2(call: Call) -> bool:
    """Return whether a call is a power of two in float32."""
    return tir.call_name(call) == "tirx.exp2" and tir.dtype_of(call) == "float32"


def with_share(loop: tirx.For, step: int, share: int, pool: Pool) -> Any:
    """A loop over a thread's states with its part of the polynomials.

    Of every ``OF`` iterations that follow one another, those of earlier steps included, ``share``
    use the polynomial, as evenly as can be.

    Parameters
    ----------
    loop : For
        Over the states of a thread.
    step : int
        Which of the steps that are written out.
    share : int
        Of ``OF``.
    pool : Pool
        Registers for intermediate values.
    """
    count = int(loop.extent)
    chosen = (step + 1) * count * share // OF - step * count * share // OF
    parts = []
    if chosen:
        parts.append(iterations(_by_polynomials(loop, pool), 0, chosen))
    if chosen < count:
        parts.append(iterations(_by_instructions(loop), chosen, count))
    return tir.seq(parts)


def iterations(loop: tirx.For, first: int, end: int, before: Any = None) -> Any:
    """Iterations ``first`` to ``end`` of a loop, each after ``before``."""
    var = tirx.Var(loop.loop_var.name, tir.dtype_of(loop.loop_var))
    index = var + tirx.IntImm(tir.dtype_of(var), first)
    body = loop.body if before is None else tir.seq([before, loop.body])
    body = tir.substitute(tir.fresh_copy(body), tir.VarMap([(loop.loop_var, index)]))
    zero, extent = tir.zero_like(var), tirx.IntImm(tir.dtype_of(var), end - first)
    return tirx.For(var, zero, extent, loop.kind, body)


def bare_exp2(power: Any) -> Any:
    """``exp2(power)`` by the instruction alone."""
    return T.cuda.func_call("scan_exp2", power, source_code=_BARE, return_type="float32")


def _by_instructions(stmt: Any) -> Any:
    def on_call(call: Call) -> Any:
        return bare_exp2(call.args[0]) if is_exp2(call) else call

    return tvm_ffi.structural_map(stmt, (Call, on_call))


def _by_polynomials(stmt: Any, pool: Pool) -> Any:
    def on_store(store: tirx.BufferStore) -> Any:
        let = Values(pool, tirx.IntImm("int32", 0))

        def on_call(call: Call) -> Any:
            return let(exp2_in_range(call.args[0], let)) if is_exp2(call) else call

        value = tvm_ffi.structural_map(store.value, (Call, on_call))
        return tir.seq([*let.stores, tirx.BufferStore(store.buffer, value, store.indices)])

    return tvm_ffi.structural_map(stmt, (tirx.BufferStore, on_store))
