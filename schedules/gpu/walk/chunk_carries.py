"""The middle kernel of walks in chunks of time: from the chunks' elements to their carries.

Every state of every lane passes through the chunks alone, since affine states of one step do not
meet. Elements are read ahead, some chunks at once: a lane of C chunks waits C / ``_AHEAD`` times.
Scratch is laid out ``[chunk][lane][state]``, so that neighbouring threads read neighbours.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.schedules.common.elements import Elements
from tvm_scan.schedules.common.ir import (
    Kernel,
    as_dtype,
    int_const,
    local,
    loop,
    threads_over,
    when,
)
from tvm_scan.schedules.common.lanes import decode_lanes
from tvm_scan.schedules.common.phases import Phases
from tvm_scan.schedules.common.replica import Replica
from tvm_scan.schedules.common.sizes import element_bytes
from tvm_scan.schedules.common.state_split import StateSplit

#: Chunks whose elements a thread reads before it needs the first of them.
AHEAD = 8
#: Words of elements that are read ahead at most.
_WORDS = 64
_THREADS = 128
_UNROLLED = tirx.ForKind.UNROLLED


def carries_of_lanes(phases: Phases, level: int, count: int) -> Any:
    """A thread per lane, for any family; ``count`` chunks, the last without an element."""
    recurrence, elements = phases.recurrence, phases.elements[level]
    ahead = max(1, min(AHEAD, _WORDS * 4 // max(1, element_bytes(recurrence))))
    now = Elements(recurrence, "now", [ahead], "local", level)

    def serial(replica: Replica, row: Var) -> Any:
        def keep(chunk: Any) -> Any:
            return replica.keep(phases.carries, [chunk, row], level)

        def fetch(u: Any, chunk: Any) -> Any:
            return replica.copy(now, [u], elements, [chunk, row])

        def pass_on(u: Any, chunk: Any) -> Any:
            return tir.seq([keep(chunk), replica.apply(now, [u])])

        batches = _in_batches(count - 1, ahead, fetch, pass_on)
        return tir.seq([batches, keep(int_const(count - 1, "int32"))])

    row, kernel = phases.scan_in_order(level, serial, more=now.buffers)
    return threads_over(kernel, row, phases.rows, _THREADS)


def carries_of_states(phases: Phases, split: StateSplit, count: int) -> Any:
    """A thread per lane and state, for states that are split, all of one level."""
    recurrence, rows = phases.recurrence, phases.rows
    (elements,), carries = phases.elements, phases.carries
    slot = tirx.Var("v_slot", tir.dtype_of(rows))
    row, state = slot // split.states, as_dtype(slot % split.states, "int32")
    replica = Replica(recurrence, decode_lanes(recurrence, row), unroll=True)
    registers = tir.VarMap()
    for old, dim in split.dims.items():
        shape = [1 if i == dim else e for i, e in enumerate(tir.shape_of(old))]
        registers[old] = local(f"{old.name}_one", shape, tir.dtype_of(old))
    whole = tir.VarMap((replica.register(old), True) for old in split.dims.keys())
    now = [
        [local(f"now{i}{j}", [AHEAD], dtype) for j, dtype in enumerate(group.algebra.dtypes)]
        for i, group in enumerate(recurrence.groups)
    ]

    def fetch(u: Any, chunk: Any) -> Any:
        return tir.seq(
            tirx.BufferStore(target, value, [u])
            for i, targets in enumerate(now)
            for target, value in zip(targets, elements.load(i, [chunk, row], [state]), strict=True)
        )

    def carry(index: int) -> tuple[Var, list[Any]]:
        carried = recurrence.carries[index]
        first_state = tir.VarMap((axis.var, tir.zero_like(axis.var)) for axis in carried.state_axes)
        return registers[carried.state], [tir.substitute(c, first_state) for c in carried.cell]

    def keep(chunk: Any) -> Any:
        values = [tirx.BufferLoad(*carry(i)) for i, _ in enumerate(recurrence.carries)]
        return tir.seq(
            tirx.BufferStore(buffer, value, [chunk, row, state])
            for buffer, value in zip(carries, values, strict=True)
        )

    def pass_on(u: Any, chunk: Any) -> Any:
        applied = []
        for i, group in enumerate(recurrence.groups):
            (member,) = group.carries
            buffer, cell = carry(member)
            element = tuple(tirx.BufferLoad(part, [u]) for part in now[i])
            (value,) = group.algebra.apply(element, (tirx.BufferLoad(buffer, cell),))
            applied.append(tirx.BufferStore(buffer, value, cell))
        return tir.seq([keep(chunk), *applied])

    parts = [recurrence.prologue, recurrence.start]
    begin = [
        replica.instantiate(split.part(p, state, 1, registers)) for p in parts if p is not None
    ]
    end = keep(int_const(count - 1, "int32"))
    body = tir.seq([*begin, _in_batches(count - 1, AHEAD, fetch, pass_on), end])

    allocs = [
        *(b for b in replica.buffers if b not in whole),
        *(new for _, new in registers.items()),
        *(part for parts in now for part in parts),
    ]

    def kernel(inside: Any) -> Kernel:
        return phases.scan_kernel(0, when(inside, body), allocs, has_outputs=False)

    return threads_over(kernel, slot, tir.simplify(rows * split.states), _THREADS)


def _in_batches(count: int, ahead: int, fetch: Any, pass_on: Any) -> Any:
    """``fetch(u, chunk)`` for some chunks, then ``pass_on(u, chunk)`` for them, and so on."""

    def batch(number: Any, size: int) -> Any:
        first = number * ahead

        def each(make: Any) -> Any:
            return loop("u", size, lambda u: make(u, first + u), _UNROLLED)

        return tir.seq([each(fetch), each(pass_on)])

    whole, rest = divmod(count, ahead)
    parts = [loop("batch", whole, lambda n: batch(n, ahead))]
    if rest:
        parts.append(batch(int_const(whole, "int32"), rest))
    return tir.seq(parts)
