"""Sequential loops for the cumulative operators of model formats."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.relax.loops.build import Shape, Step, build_loop

__all__ = ["cumulative_loop", "extremum_loop", "logsumexp_loop", "product_gradient_loop"]

_COMBINE: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "cumsum": (0, lambda earlier, later: earlier + later),
    "cumprod": (1, lambda earlier, later: earlier * later),
}


def _cast(value: Any, dtype: str) -> Any:
    return value if tir.dtype_of(value) == dtype else tirx.Cast(tir.prim_type(dtype), value)


@lru_cache(maxsize=256)
def cumulative_loop(
    name: str,
    shape: Shape,
    source: str,
    dtype: str,
    exclusive: bool = False,
    reverse: bool = False,
) -> tirx.PrimFunc:
    """Build the cumulative sum or product along the middle axis.

    Parameters
    ----------
    name : {"cumsum", "cumprod"}
        The operator.
    shape : Shape
        ``(outer, length, inner)``.
    source, dtype : str
        Dtype of the input; dtype of the result, in which it is computed.
    exclusive : bool
        Emit the value before the update.
    reverse : bool
        Walk from the last step to the first.

    Returns
    -------
    tirx.PrimFunc
        ``(X, Y)``; `Y` is written.
    """
    identity, combine = _COMBINE[name]

    def step(at: Step) -> None:
        if exclusive:
            at.emit("Y", at.get("carry"))
        at.set("carry", combine(at.get("carry"), _cast(at.read("X"), dtype)))
        if not exclusive:
            at.emit("Y", at.get("carry"))

    initial = {"carry": tirx.const(identity, dtype)}
    return build_loop(name, shape, {"X": source}, {"Y": dtype}, initial, step, reverse=reverse)


@lru_cache(maxsize=256)
def logsumexp_loop(shape: Shape, source: str, dtype: str, reverse: bool = False) -> tirx.PrimFunc:
    """Build ``y[t] = log(exp(x[0]) + ... + exp(x[t]))`` as the running pair of maximum and sum.

    Parameters
    ----------
    shape : Shape
        ``(outer, length, inner)``.
    source, dtype : str
        Dtype of the input and of the result, floats; halves are computed in float32.
    reverse : bool
        Walk from the last step to the first.

    Returns
    -------
    tirx.PrimFunc
        ``(X, Y)``; `Y` is written.
    """
    carried = tir.wide_dtype(dtype)
    highest = tirx.max_value(carried)

    def step(at: Step) -> None:
        x, largest = _cast(at.read("X"), carried), at.get("largest")
        # Never infinite, so that exp(inf - inf) comes nowhere: an infinite x makes the sum
        # infinite by exp(inf - highest), and a NaN makes it NaN, each for good.
        after = tirx.max(largest, tirx.min(x, highest))
        at.set("total", at.get("total") * tirx.exp(largest - after) + tirx.exp(x - after))
        at.set("largest", after)
        at.emit("Y", _cast(at.get("largest") + tirx.log(at.get("total")), dtype))

    # Not minus infinity: exp(-inf - -inf) is no number, exp(lowest - lowest) is one.
    initial = {"largest": tirx.min_value(carried), "total": tirx.const(0.0, carried)}
    writes = {"Y": dtype}
    return build_loop("logcumsumexp", shape, {"X": source}, writes, initial, step, reverse=reverse)


@lru_cache(maxsize=256)
def extremum_loop(name: str, shape: Shape, dtype: str) -> tirx.PrimFunc:
    """Build the running maximum or minimum with its index, as ``torch.cummax`` has it.

    Among equals the latest wins, and a NaN wins over every number and is never replaced but by
    a later NaN.

    Parameters
    ----------
    name : {"cummax", "cummin"}
        The operator.
    shape : Shape
        ``(outer, length, inner)``.
    dtype : str
        Dtype of the values.

    Returns
    -------
    tirx.PrimFunc
        ``(X, V, I)``: values in `dtype` and indices in int64 are written.
    """
    floats = "float" in dtype
    if floats:
        worst = tirx.const(float("-inf" if name == "cummax" else "inf"), dtype)
    else:
        worst = (tirx.min_value if name == "cummax" else tirx.max_value)(dtype)

    def step(at: Step) -> None:
        x, best = at.read("X"), at.get("best")
        wins = tirx.GE(x, best) if name == "cummax" else tirx.LE(x, best)
        if floats:  # no comparison with a NaN holds, so that a NaN carry stays
            wins = tirx.Or(tirx.isnan(x), wins)
        at.set("where", tirx.Select(wins, at.time, at.get("where")))
        at.set("best", tirx.Select(wins, x, best))
        at.emit("V", at.get("best"))
        at.emit("I", at.get("where"))

    # The first step wins over the worst value, also where it is as bad.
    initial = {"best": worst, "where": tirx.IntImm("int64", 0)}
    return build_loop(name, shape, {"X": dtype}, {"V": dtype, "I": "int64"}, initial, step)


@lru_cache(maxsize=256)
def product_gradient_loop(shape: Shape, dtype: str, exclusive: bool) -> tirx.PrimFunc:
    """Build what the gradient of a product sends back: a linear recurrence against time.

    ``s[t] = g[t] + x[t+1] s[t+1]``, or where `exclusive` ``s[t] = g[t+1] + x[t+1] s[t+1]``; what
    lies beyond the last step is 0. Then ``dL/dx[t] = s[t] * (x[0] * ... * x[t-1])``.

    Parameters
    ----------
    shape : Shape
        ``(outer, length, inner)``.
    dtype : str
        Dtype of all arrays.
    exclusive : bool
        Whether the product was.

    Returns
    -------
    tirx.PrimFunc
        ``(X, G, S)``; `S` is written.
    """

    def step(at: Step) -> None:
        # The carry is x[t+1] s[t+1], and where exclusive also + g[t+1].
        carry, g = at.get("carry"), at.read("G")
        if exclusive:
            at.emit("S", carry)
            at.set("carry", carry * at.read("X") + g)
        else:
            at.emit("S", carry + g)
            at.set("carry", (carry + g) * at.read("X"))

    reads = {"X": dtype, "G": dtype}
    initial = {"carry": tirx.const(0, dtype)}
    return build_loop("product_gradient", shape, reads, {"S": dtype}, initial, step, reverse=True)
