"""Several lanes that a core advances together: each waits while the others are at work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.schedules.common.ir import int_const, loop, whole_parts
from tvm_scan.schedules.machine.terms import apart

#: Steps of one chain before those of the next one: a line of float32.
RUN = 16
#: Of those, written out one after another: TVM's own passes are slow on long bodies.
_UNROLL = 4


def interleaved_chains(
    extent: Any,
    across: Callable[[Callable[[Any], Any]], Any],
    step: Callable[[Any, Any], Any],
) -> Any:
    """``extent`` steps of several independent chains, a cache line of each after the other.

    The core's reordering window holds several runs, so that the chains still overlap, while a
    line of memory is used up at once. Rows that are a power of two apart meet in one set of the
    first-level cache: changed at every step, four rows of three streams evict each other.

    What follows one another stays apart: LLVM would take the same steps of several chains as cells
    of a vector, which it gathers one by one and scatters (22 and 11 steps of a row: twice as long).

    Parameters
    ----------
    extent : Expr
        Number of steps.
    across : callable
        ``across(make)`` is ``make(chain)`` for every chain.
    step : callable
        ``step(chain, i)`` is the statement of one step of one chain.
    """
    runs, done, rest = whole_parts(extent, RUN)

    def run(chain: Any, n: Any) -> Any:
        def part(m: Any) -> Any:
            first, few = n * RUN + m * _UNROLL, int_const(_UNROLL, extent)
            return loop("i", few, lambda i: step(chain, first + i), ForKind.UNROLLED)

        return apart(loop("m", int_const(RUN // _UNROLL, extent), part))

    whole = loop("n", runs, lambda n: across(lambda chain: run(chain, n)))
    single = loop("i", rest, lambda i: across(lambda chain: apart(step(chain, done + i))))
    return tir.seq([whole, single])
