"""CPU builders: lanes over cores, and three phases over chunks of time.

Work and span, for R lanes of L steps on P cores: ``lanes`` does R L steps with span R L / P;
``three_phase`` does 2 R L steps with span 2 R L / P even for one lane.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.tirx import ForKind

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.ir import int_const, kernel_block, local, loop, when
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.replica import Elements, Replica, decode_lanes, lane_count
from tvm_scan.schedules.result import Built

__all__ = ["build_lanes", "build_three_phase"]


#: Lanes of one vector operation; TVM splits it into what the machine has.
_VECTOR = 32


def _scratch(recurrence: Recurrence, name: str, lead: list[Any]) -> Elements:
    return Elements(recurrence, name, lead, "global")


def build_lanes(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """Every lane walks time serially; blocks of lanes go to cores.

    A block of ``lane_block`` neighbouring lanes advances together: as vector lanes where the
    lane axis is contiguous in memory, else interleaved, so that the latency of one lane's
    chain hides behind the others. Lanes beyond the last full block run one by one.
    """
    width = plan.lane_block if recurrence.lanes else 1
    if width == 1:
        return Built([_lane_nest(recurrence, 1, plan, lane_count(recurrence), None)], [])
    lanes = recurrence.lanes[-1].extent
    outer = int_const(1, lanes)
    for axis in recurrence.lanes[:-1]:
        outer = outer * axis.extent
    outer = tir.simplify(outer)
    # A constant remainder goes to narrower blocks, so that few lanes run one by one.
    widths = [width, 1] if tir.as_int(lanes) is None else _halvings(width)
    nests, done = [], int_const(0, lanes)
    for size in widths:
        full = tir.simplify((lanes - done) // size)
        if tir.as_int(full) != 0:
            nests.append(_lane_nest(recurrence, size, plan, outer, full, done))
            done = tir.simplify(done + full * size)
    if not nests:
        nests.append(_lane_nest(recurrence, 1, plan, lane_count(recurrence), None))
    return Built(nests, [])


def _halvings(width: int) -> list[int]:
    sizes = [width]
    while sizes[-1] > 1:
        half = sizes[-1] // 2
        sizes.append(half if half <= _VECTOR else half // _VECTOR * _VECTOR)
    return sizes


def _lane_nest(
    recurrence: Recurrence, width: int, plan: ScanPlan, outer: Any, inner: Any, offset: Any = None
) -> Any:
    time = recurrence.time
    rows = outer if inner is None else tir.simplify(outer * inner)
    dtype = tir.dtype_of(rows)
    row = tirx.Var("v_row", dtype)
    if inner is None:
        lanes = decode_lanes(recurrence, row)
    else:
        last = tir.simplify((row % inner) * width) + (0 if offset is None else offset)
        number = (row // inner) * recurrence.lanes[-1].extent
        lanes = [*decode_lanes(recurrence, number)[:-1], last]
    replica = Replica(recurrence, lanes, unroll=False, width=width)

    probe = tirx.Var("u", dtype)

    def across(make: Any) -> Any:
        """``make`` for each lane of the block."""
        if width == 1:
            return make(None)
        if not plan.vectorize:
            return loop("u", width, make, ForKind.UNROLLED, dtype)
        kind = ForKind.SERIAL if _branches(make(probe)) else ForKind.VECTORIZED
        if width <= _VECTOR:
            return loop("u", width, make, kind, dtype)
        # A wide block is a strip of memory rows: many vectors per step, carries in L1.
        vector = int_const(_VECTOR, dtype)
        return loop(
            "w",
            width // _VECTOR,
            lambda w: loop("u", _VECTOR, lambda u: make(w * vector + u), kind, dtype),
            dtype=dtype,
        )

    # Without a use outside the vector loop TVM would move the registers into it and shrink
    # them to one lane.
    stmts = [] if width == 1 else [replica.clear()]
    stmts.append(across(replica.begin))
    if recurrence.boundary is not None:
        stmts.append(across(replica.boundary))
    stmts.append(
        loop("t", time.extent, lambda t: across(lambda u: replica.step(t, u)), dtype=dtype)
    )
    if recurrence.finish is not None:
        stmts.append(across(replica.finish))
    body = when(_guard(recurrence, lanes), tir.seq(stmts))
    return loop(
        "row",
        rows,
        lambda r: kernel_block(
            "scan_lanes",
            [(row, rows, r)],
            recurrence.inputs,
            recurrence.outputs,
            body,
            replica.buffers,
            {},
        ),
        ForKind.PARALLEL,
    )


def _branches(stmt: Any) -> bool:
    """Whether ``stmt`` chooses: TVM's vectoriser gets choices on scalars wrong.

    Such a loop is left to LLVM's own vectoriser.
    """
    found: list[Any] = []

    def on_call(call: Call) -> None:
        if tir.call_name(call) == "prim.if_then_else":
            found.append(call)

    tvm_ffi.structural_walk(stmt, [(tirx.IfThenElse, found.append), (Call, on_call)])
    return bool(found)


def _guard(recurrence: Recurrence, lanes: list[Any]) -> Any:
    if recurrence.guard is None:
        return None
    table = tir.VarMap((a.var, v) for a, v in zip(recurrence.lanes, lanes, strict=True))
    return tir.substitute(recurrence.guard, table)


def build_three_phase(recurrence: Recurrence, plan: ScanPlan) -> Built:
    """Reduce chunks to elements, scan the elements of a lane, replay the chunks.

    A lane is cut into ``chunks`` chunks of ``L // chunks`` steps; the last one also takes the
    remainder. ``lane_block`` chunks are interleaved in one task to hide latency.
    """
    time, chunks, width = recurrence.time, plan.chunks, plan.lane_block
    rows = lane_count(recurrence)
    dtype = tir.dtype_of(rows)
    tdtype = tir.dtype_of(time.var)
    groups = chunks // width
    elements = _scratch(recurrence, "chunk", [rows, int_const(chunks, dtype)])
    carries = [
        local(
            f"carry{i}",
            [rows, int_const(chunks, dtype), *(int(a.extent) for a in c.state_axes)],
            c.dtype,
            "global",
        )
        for i, c in enumerate(recurrence.carries)
    ]
    quotient = time.extent // int_const(chunks, tdtype)

    def at(group: Any, u: Any) -> Any:
        """Chunk number: streams of one task are neighbours in time."""
        return group * width + (0 if u is None else u)

    def streams(make: Any) -> Any:
        return loop("u", width, make, ForKind.UNROLLED)

    def reduce_phase() -> Any:
        row, group = tirx.Var("v_row", dtype), tirx.Var("v_group", dtype)
        lanes = decode_lanes(recurrence, row)
        replica = Replica(recurrence, lanes, unroll=False)
        held = Elements(recurrence, "held", [width], "local")

        def extend(i: Any) -> Any:
            return streams(
                lambda u: replica.extend(held, [u], _cast(at(group, u), tdtype) * quotient + i)
            )

        def save(u: Any) -> Any:
            return replica.for_each_cell(
                lambda i, p: elements.store(i, [row, at(group, u)], p, held.load(i, [u], p))
            )

        body = tir.seq(
            [
                replica.prologue(),
                streams(lambda u: replica.set_identity(held, [u])),
                loop("i", quotient, extend),
                streams(save),
            ]
        )
        return _two(
            "scan_reduce",
            rows,
            groups,
            dtype,
            row,
            group,
            recurrence.inputs,
            elements.buffers,
            when(_guard(recurrence, lanes), body),
            [*replica.buffers, *held.buffers],
        )

    def carry_phase() -> Any:
        row = tirx.Var("v_row", dtype)
        lanes = decode_lanes(recurrence, row)
        replica = Replica(recurrence, lanes, unroll=False)

        def one(c: Any) -> Any:
            def keep(i: int, place: list[Any]) -> Any:
                value = replica.get_carry(i, place)
                return tirx.BufferStore(carries[i], value, [row, c, *place])

            return tir.seq([replica.for_each_cell(keep), replica.apply(elements, [row, c])])

        body = tir.seq(
            [
                replica.begin(),
                replica.boundary(),
                loop("c", int_const(chunks, dtype), one),
            ]
        )
        reads = [*recurrence.inputs, *elements.buffers, *_read_state(recurrence)]
        writes = [*carries, *(recurrence.outputs if recurrence.boundary is not None else [])]
        return loop(
            "row",
            rows,
            lambda r: kernel_block(
                "scan_carries",
                [(row, rows, r)],
                reads,
                writes,
                when(_guard(recurrence, lanes), body),
                replica.buffers,
                {},
            ),
            ForKind.PARALLEL,
        )

    def replay_phase() -> Any:
        row, group = tirx.Var("v_row", dtype), tirx.Var("v_group", dtype)
        lanes = decode_lanes(recurrence, row)
        replicas = [
            Replica(recurrence, lanes, unroll=False, tag=f"_{u}" if width > 1 else "")
            for u in range(width)
        ]

        def restore(u: int) -> Any:
            replica = replicas[u]
            return tir.seq(
                [
                    replica.prologue(),
                    replica.for_each_cell(
                        lambda i, p: replica.set_carry(
                            i, p, tirx.BufferLoad(carries[i], [row, at(group, u), *p])
                        )
                    ),
                ]
            )

        def step(i: Any) -> Any:
            return tir.seq(
                [replicas[u].step(_cast(at(group, u), tdtype) * quotient + i) for u in range(width)]
            )

        last = replicas[-1]
        done = quotient * int_const(chunks, tdtype)
        tail = tir.seq(
            [
                loop("i", time.extent - done, lambda i: last.step(done + i)),
                last.finish(),
            ]
        )
        body = tir.seq(
            [
                *(restore(u) for u in range(width)),
                loop("i", quotient, step),
                when(tirx.EQ(group, int_const(groups - 1, dtype)), tail),
            ]
        )
        return _two(
            "scan_replay",
            rows,
            groups,
            dtype,
            row,
            group,
            [*recurrence.inputs, *carries],
            recurrence.outputs,
            when(_guard(recurrence, lanes), body),
            [b for r in replicas for b in r.buffers],
        )

    nests = [reduce_phase(), carry_phase(), replay_phase()]
    return Built(nests, [*elements.buffers, *carries])


def _read_state(recurrence: Recurrence) -> list[Any]:
    return [r.buffer for r in recurrence.registers if r.visible and not r.timed]


def _cast(value: Any, dtype: str) -> Any:
    if isinstance(value, int):
        return int_const(value, dtype)
    return value if tir.dtype_of(value) == dtype else tirx.Cast(dtype, value)


def _two(
    name: str,
    rows: Any,
    groups: int,
    dtype: str,
    row: Any,
    group: Any,
    reads: Any,
    writes: Any,
    body: Any,
    allocs: Any,
) -> Any:
    """A block over (row, group), both in one parallel loop."""
    count = int_const(groups, dtype)
    total = tir.simplify(rows * count)

    def realize(task: Any) -> Any:
        return kernel_block(
            name,
            [(row, rows, task // count), (group, count, task % count)],
            reads,
            writes,
            body,
            allocs,
            {},
        )

    return loop("task", total, realize, ForKind.PARALLEL)
