"""Other people's kernels: parallel for long sequences, as they were for a single step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.s_tir import SBlock, SBlockRealize, renew_defs
from tvm.target import Target
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.extraction.threads import is_bound, without_threads
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.splice import ensure_blocks


def keep_for_one_step(
    func: tirx.PrimFunc,
    scheduled: tirx.PrimFunc,
    recurrences: Sequence[TimeLoop],
    target: Target | None,
) -> tirx.PrimFunc:
    """Run the original where a call has one step, which is what a decoder does most of the time.

    Its author made it for that; the parallel form gains nothing there. The branch is taken on the
    host, before anything is launched.

    Parameters
    ----------
    func : tirx.PrimFunc
        As its author scheduled it.
    scheduled : tirx.PrimFunc
        The parallel form.
    recurrences : sequence of Recurrence or DeltaRule
        Of `func`.
    target : tvm.target.Target or None
        On a CPU, a kernel that is bound to threads becomes plain loops.

    Returns
    -------
    tirx.PrimFunc
        `scheduled` itself where the lengths are constants, or are not known on the host, or the
        original cannot run on the target; of a delta rule on a CPU, too, whose rows of a column
        lie far apart in memory: a thread of a GPU has a column, a vector of a CPU has a row.
    """
    on_cpu = target is None or not device_of(target).is_gpu
    if on_cpu and any(isinstance(each, DeltaRule) for each in recurrences):
        return scheduled
    lengths = [recurrence.time.extent for recurrence in recurrences]
    sizes = tir.variables([extent for p in func.params for extent in tir.shape_of(p)])
    symbols = tir.variables(lengths).keys()
    if not symbols or any(var not in sizes for var in symbols):
        return scheduled
    original = renew_defs(ensure_blocks(func))
    if on_cpu:
        original = original.with_body(without_threads(original.body))
    elif not is_bound(original.body):
        return scheduled
    short = tir.all_of([extent <= tirx.IntImm(tir.dtype_of(extent), 1) for extent in lengths])
    old = tir.substitute(original.body, _same_parameters(original, scheduled)).block
    new = scheduled.body.block
    short = tir.substitute(short, _same_parameters(func, scheduled))
    body = tir.seq([_once_if(short, old.body), _once_if(tirx.Not(short), new.body)])
    allocs = [*old.alloc_buffers, *new.alloc_buffers]
    root = SBlock([], [], [], new.name_hint, body, None, allocs)
    return scheduled.with_body(SBlockRealize([], True, root))


def _once_if(cond: Any, stmt: Any) -> Any:
    """``stmt`` under a condition of the host, as a loop that runs once or not at all.

    TVM inserts barriers into kernels before it tells them from the host's code, and refuses to
    insert any under an ``if``.
    """
    one, zero = tirx.IntImm("int64", 1), tirx.IntImm("int64", 0)
    times = tirx.Select(cond, one, zero)
    return tirx.For(tirx.Var("once", "int64"), zero, times, ForKind.SERIAL, stmt)


def _same_parameters(func: tirx.PrimFunc, other: tirx.PrimFunc) -> tir.VarMap:
    """Parameters and symbolic extents of one function as those of another."""
    table = tir.VarMap(zip(func.params, other.params, strict=True))
    for parameter, counterpart in zip(func.params, other.params, strict=True):
        for left, right in zip(tir.shape_of(parameter), tir.shape_of(counterpart), strict=True):
            if isinstance(left, Var):
                table[left] = right
    return table
