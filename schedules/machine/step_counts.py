"""Work of a step, counted in its statements: for the cost model of ``gpu_cost``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.sizes import known_extent

_SPECIALS = ("exp", "exp2", "log", "log2", "log1p", "tanh", "sigmoid", "pow", "sqrt", "rsqrt")
#: Instructions that nvcc makes of a call, and of a division, without fast math.
_CALLS = {
    "exp": 6, "exp2": 4, "log": 14, "log2": 12, "log1p": 30, "tanh": 20, "sigmoid": 16,
    "pow": 40, "sqrt": 8, "rsqrt": 5, "fabs": 0, "if_then_else": 1, "likely": 0,
    "isnan": 1,
}  # fmt: skip
_DIVISION = 10
#: Instructions that are counted for any other call.
CALL = 2.0


@dataclass(frozen=True)
class StepCost:
    """Work of one step of one lane.

    Attributes
    ----------
    flops, specials, accesses : float
        Arithmetic, special functions, loads and stores of memory.
    bytes : float
        Of all arrays, each cell once, by the number of steps of all lanes.
    """

    flops: float
    specials: float
    accesses: float
    bytes: float


@lru_cache(maxsize=64)
def step_cost(recurrence: Recurrence) -> StepCost:
    """Count what the body of a recurrence does, loops over states included."""
    flops, specials, accesses = _counts(recurrence.body)
    total = array_bytes((*recurrence.inputs, *recurrence.outputs), recurrence)
    return StepCost(flops, specials, accesses, total)


def _counts(stmt: Any) -> tuple[float, float, float]:
    """Arithmetic, special functions and accesses of a statement."""
    counts = [0.0, 0.0, 0.0]
    skip = tvm_ffi.WalkResult.SKIP

    def add(index: int, amount: float = 1.0) -> None:
        counts[index] += amount

    def on_loop(loop: tirx.For) -> Any:
        inner = _counts(loop.body)
        for index, amount in enumerate(inner):
            add(index, amount * known_extent(loop.extent))
        return skip

    def on_call(call: Call) -> None:
        if (tir.call_name(call) or "").rpartition(".")[2] in _SPECIALS:
            add(1)

    def on_access(node: Any) -> Any:
        buffer = node.source if isinstance(node, TensorLoad) else node.buffer
        if str(buffer.scope()) != "local":
            add(2)
        return skip if isinstance(node, TensorLoad) else None

    arithmetic = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
    # Index arithmetic is integer, is hoisted, and is not looked into.
    handlers: list[Any] = [
        (tirx.For, on_loop),
        (Call, on_call),
        (TensorLoad, on_access),
        (tirx.BufferStore, on_access),
        *((kind, lambda _: add(0)) for kind in arithmetic),
    ]
    tvm_ffi.structural_walk(stmt, handlers, order="pre")
    return counts[0], counts[1], counts[2]


def specials_of(node: Any) -> float:
    """Special functions of a statement or expression."""
    return _counts(node)[1]


def array_bytes(buffers: Any, recurrence: Recurrence) -> float:
    """Bytes of arrays, each cell once, by the number of steps of all lanes."""
    total = 0.0
    for buffer in tir.VarMap((b, True) for b in buffers).keys():
        cells = prod(known_extent(extent) for extent in tir.shape_of(buffer))
        total += cells * tir.byte_size(tir.dtype_of(buffer))
    steps = prod(known_extent(axis.extent) for axis in (*recurrence.lanes, recurrence.time))
    return total / max(1, steps)


def instructions_of(node: Any, *, bare: bool = False, seen: tir.ExprMap | None = None) -> float:
    """Instructions of a statement's or expression's arithmetic, as nvcc emits them.

    A product and the sum that takes it are one. Accesses to memory and indices are not counted.

    Parameters
    ----------
    node : Stmt or Expr
        What to count.
    bare : bool
        Whether ``exp2`` of float32 is one instruction, as in a walk over states.
    seen : ExprMap, optional
        What is counted already, of expressions that are computed once for all who need them; that
        of the node is added.
    """
    total = 0.0
    skip = tvm_ffi.WalkResult.SKIP

    def add(amount: float) -> None:
        nonlocal total
        total += amount

    def on_loop(loop: tirx.For) -> Any:
        add(known_extent(loop.extent) * instructions_of(loop.body, bare=bare))
        return skip

    def on_store(store: tirx.BufferStore) -> Any:
        add(instructions_of(store.value, bare=bare))
        return skip

    def on_sum(node: Any) -> None:
        add(0.0 if any(isinstance(side, tirx.Mul) for side in (node.a, node.b)) else 1.0)

    def on_call(call: Call) -> None:
        name = (tir.call_name(call) or "").rpartition(".")[2]
        add(1.0 if bare and name == "exp2" else float(_CALLS.get(name, CALL)))

    def once(handler: Callable[[Any], None]) -> Callable[[Any], Any]:
        """Return a handler that passes over what is counted, and what is in it."""
        if seen is None:
            return handler

        def counted(node: Any) -> Any:
            if node in seen:
                return skip
            seen[node] = True
            return handler(node)

        return counted

    of_one_instruction = (
        tirx.Mul,
        tirx.Max,
        tirx.Min,
        tirx.Select,
        tirx.Cast,
        tirx.LT,
        tirx.LE,
        tirx.GT,
        tirx.GE,
        tirx.EQ,
        tirx.NE,
    )
    handlers: list[Any] = [
        (tirx.For, on_loop),
        (tirx.BufferStore, on_store),
        (TensorLoad, lambda _: skip),
        (Call, once(on_call)),
        (tirx.Add, once(on_sum)),
        (tirx.Sub, once(on_sum)),
        (tirx.Div, once(lambda _: add(_DIVISION))),
        *((kind, once(lambda _: add(1.0))) for kind in of_one_instruction),
    ]
    tvm_ffi.structural_walk(node, handlers, order="pre")
    return total


def moving_loads(parts: list[Any], recurrence: Recurrence) -> list[tuple[TensorLoad, float]]:
    """Different loads of memory that move with time, and how often a step makes each.

    Parameters
    ----------
    parts : list of Stmt or Expr
        Of a step.
    recurrence : Recurrence
        Gives the time variable.
    """
    moving = tir.ExprMap()
    skip, time = tvm_ffi.WalkResult.SKIP, recurrence.time.var

    def visit(node: Any, times: float) -> None:
        def on_loop(loop: tirx.For) -> Any:
            visit(loop.body, times * known_extent(loop.extent))
            return skip

        def on_load(load: TensorLoad) -> None:
            if str(load.source.scope()) == "local" or not tir.contains_var(load, [time]):
                return
            if load not in moving:
                moving[load] = times

        tvm_ffi.structural_walk(node, [(tirx.For, on_loop), (TensorLoad, on_load)], order="pre")

    for part in parts:
        visit(part, 1.0)
    return moving.items()
