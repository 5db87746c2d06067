"""Bounds on how far a scan may be from its loop, and where, by the recurrence's family.

The law of docs/numerics.md bounds an error by the size of the terms. Here that size is the largest
magnitude that the loop has had so far in the same lane, or, where terms cancel, what a change of
the inputs by the bound makes of the loop's result, over the bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Call, Var

from tvm_scan import tir
from tvm_scan.algebra import Algebra, BoundedAffine
from tvm_scan.algebra.literal import is_float
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.verification.inputs import STEPS

#: Families whose scan does the loop's own operations on the loop's own values.
_EXACT = ("bitwise affine", "shifted bits", "two states", "finite automaton")
_EXACT_OPERATORS = ("max", "min", "and", "or", "xor")
#: Families that may leave the loop once a value is not finite; docs/numerics.md says how.
_NONE: frozenset[str] = frozenset()
_UNTIL_FINITE = ("clamp", "linear fractional", "declared associative")


@dataclass(frozen=True)
class Promise:
    """A promise about one output.

    Attributes
    ----------
    bound : float
        Of the error over the size of the terms; 0 asks for the same values.
    time : int or None
        The dimension that is time, if one is.
    reverse : bool
        Whether the loop runs over it backwards.
    finite_alike : bool
        Whether finite values and others are where the loop has them throughout, and not only before
        the first step of a lane that is not finite.
    gates : frozenset of str
        Inputs whose infinities count as the largest number, so that the scan may leave the loop
        where it is another one than without them.
    """

    bound: float
    time: int | None
    reverse: bool
    finite_alike: bool
    gates: frozenset[str]


def promise(recurrence: TimeLoop, output: Var, *, rounds_steps: bool = False) -> Promise:
    """Return what the scan of a recurrence promises of one of its outputs.

    Parameters
    ----------
    recurrence : Recurrence or DeltaRule
    output : Var
        A parameter that is written.
    rounds_steps : bool
        Whether it is compared with a loop that rounds its carry to a half at every step.
    """
    dtype = tir.dtype_of(output)
    if isinstance(recurrence, DeltaRule):
        indices = [w.index for w in recurrence.stores if w.buffer.same_as(output)]
        time, reverse = _moves(indices, recurrence.time.var)
        bound = _bound_of_floats(
            recurrence, dtype, tir.is_half(dtype) or rounds_steps, rounds_steps
        )
        return Promise(bound, time, reverse, False, _NONE)
    stores = [s for s in tir.nodes(recurrence.body, tirx.BufferStore) if s.buffer.same_as(output)]
    time, reverse = _moves([store.indices for store in stores], recurrence.time.var)
    algebras = [algebra.innermost for algebra in recurrence.algebras]
    finite_alike = not any(algebra.name in _UNTIL_FINITE for algebra in algebras)
    gates = {
        str(load.source.name)
        for algebra in algebras
        if isinstance(algebra, BoundedAffine) and algebra.step.gate is not None
        for load in tir.loads(algebra.step.gate)
    }
    return Promise(
        _bound(recurrence, dtype, rounds_steps), time, reverse, finite_alike, frozenset(gates)
    )


def errors(
    want: np.ndarray,
    got: np.ndarray,
    moved: np.ndarray,
    promised: Promise,
    touched: np.ndarray | None = None,
) -> np.ndarray:
    """Errors over the size of the terms: elementwise, infinite where only one is finite.

    Parameters
    ----------
    want, got : ndarray
        The loop's values and the scan's, as float64.
    moved : ndarray
        What small changes of the inputs make of the loop's values, over those changes.
    promised : Promise
        Of this output.
    touched : ndarray of bool, optional
        Steps from which on, in their lanes, nothing is promised.
    """
    if touched is not None:
        return np.where(_before(touched, promised), errors(want, got, moved, promised), 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(want - got)
    same = (want == got) | (np.isnan(want) & np.isnan(got))
    if promised.bound == 0:
        return np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))
    finite = np.isfinite(want)
    with np.errstate(over="ignore", invalid="ignore"):
        terms = _so_far(np.where(finite, np.abs(want), 0.0) + moved, promised)
        relative = np.where(same, 0.0, apart / np.maximum(terms, _SMALLEST))
    relative = np.where(finite & np.isfinite(got), relative, np.inf)
    relative = np.where(~finite & ~np.isfinite(got), 0.0, relative)
    if not promised.finite_alike:
        relative = np.where(_before(~finite, promised), relative, 0.0)
    return relative


#: Below it, numbers of float32 have one absolute spacing.
_SMALLEST = float(np.finfo("float32").tiny)


def takes_extrema(func: tirx.PrimFunc) -> bool:
    """Return whether a function takes maxima or minima; devices answer differently for NaN."""
    return any(is_float(tir.dtype_of(e)) for e in tir.nodes(func.body, tirx.Max, tirx.Min))


def _moves(stores: Iterable[Any], time: Var) -> tuple[int | None, bool]:
    """The dimension of an output that moves with time, and whether it moves backwards."""
    moves = set()
    for indices in stores:
        moving = [d for d, i in enumerate(indices) if tir.contains_var(i, [time])]
        if len(moving) == 1:
            moves.add((moving[0], _stride(indices[moving[0]], time)))
    if len(moves) != 1:
        return None, False
    ((dimension, stride),) = moves
    return (dimension, stride < 0) if stride else (None, False)


def _stride(index: Any, time: Var) -> int | None:
    zero, one = (tir.substitute(index, {time: tirx.IntImm(tir.dtype_of(time), n)}) for n in (0, 1))
    return tir.as_int(tir.simplify(one - zero))


def _in_order(values: np.ndarray, promised: Promise) -> np.ndarray:
    """A view with the steps in the loop's order along the first dimension."""
    assert promised.time is not None
    moved = np.moveaxis(values, promised.time, 0)
    return moved[::-1] if promised.reverse else moved


def _so_far(values: np.ndarray, promised: Promise) -> np.ndarray:
    """The largest value of a lane up to each step; of all, where no dimension is time."""
    out = np.empty_like(values)
    if promised.time is None:
        out[...] = values.max(initial=0.0)
    else:
        _in_order(out, promised)[...] = np.maximum.accumulate(_in_order(values, promised))
    return out


def _before(bad: np.ndarray, promised: Promise) -> np.ndarray:
    """Mask of where no step of the lane so far is bad; empty, if one is and none is earlier."""
    out = np.empty_like(bad)
    if promised.time is None:
        out[...] = not bad.any()
    else:
        _in_order(out, promised)[...] = ~np.logical_or.accumulate(_in_order(bad, promised))
    return out


def _bound(recurrence: Recurrence, dtype: str, rounds_steps: bool) -> float:
    # A step that calls functions may compute them by polynomials on vectors.
    calls_round = any(map(rounds, tir.nodes(recurrence.body, Call)))
    is_exact = not calls_round and all(_is_exact(algebra) for algebra in recurrence.algebras)
    if is_exact or not is_float(dtype):
        return 0.0
    return _bound_of_floats(recurrence, dtype, tir.is_half(dtype), rounds_steps)


def _bound_of_floats(loop: TimeLoop, dtype: str, is_half: bool, rounds_steps: bool) -> float:
    """Bound of values that are rounded; a delta rule's steps once for each row of each term."""
    if is_half:
        # Rounded once, to bfloat16's unit or half of it, beside what a loop's own steps add.
        return (16 if rounds_steps else 4) * 2.0**-8
    # Errors of either sign mostly cancel: 2 k sqrt(t + c) units, k up to 10, of half an eps.
    steps = max(16, tir.as_int(loop.time.extent) or STEPS)
    return 16 * float(np.finfo(dtype).eps) * float(np.sqrt(steps * loop.roundings))


def _is_exact(algebra: Algebra) -> bool:
    inner = algebra.innermost
    return inner.name in _EXACT or getattr(inner, "op", "") in _EXACT_OPERATORS


def rounds(call: Call) -> bool:
    """Return whether a call may round: one of floats that does not choose one of its arguments."""
    exact = ("prim.if_then_else", "tirx.if_then_else", "tirx.likely")
    return is_float(tir.dtype_of(call)) and tir.call_name(call) not in exact
