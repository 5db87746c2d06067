"""Steps of every lane in float64, so that no wrong kernel is ever fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tvm_scan import library

__all__ = ["Expected", "expected", "is_right"]

Arrays = Mapping[str, np.ndarray]

#: Random steps that are looked at, beside the first and the last.
_LOOKED_AT = 64
#: Steps after which gates below 1, resets and stable poles have forgotten all that was before.
_REMEMBERED = 4096
#: Sequences up to here are walked from their first step on.
_WALKED = 1 << 18
#: Unit roundoff of float32, and how often the law's random walk of roundings it may be.
_UNIT, _FACTOR = 2.0**-24, 4.0
#: Of the selective scan: some tens of roundings a step, with exponentials by polynomials.
_SELECTIVE = 2.0**-14


@dataclass(frozen=True)
class Expected:
    """What a result must be at some steps.

    Attributes
    ----------
    axis : int
        Time, in the arrays.
    steps : ndarray
        Which steps.
    values : ndarray
        Their values in float64; the steps come first.
    tolerance : ndarray
        Largest difference at each: so many roundings of the largest state, as the recurrence
        remembers steps.
    """

    axis: int
    steps: np.ndarray
    values: np.ndarray
    tolerance: np.ndarray


def expected(kind: str, arrays: Arrays) -> Expected:
    """The first, the last and random steps of every lane.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    arrays : mapping of str to ndarray
        Its inputs.
    """
    axis = {"cumsum rows": 0, "affine middle": 1}.get(kind, -1)
    length = arrays["out"].shape[axis]
    chosen = np.random.default_rng(1).integers(0, length, _LOOKED_AT)
    steps = np.unique([0, length - 1, *chosen])
    if kind.startswith("selective scan"):
        return _selective(kind, arrays, steps)
    x = np.moveaxis(arrays["X"], axis, 0).astype("float64")
    if kind.startswith("cumsum"):
        states = np.cumsum(x, axis=0)
    elif kind == "cummax":
        states = np.maximum.accumulate(x, axis=0)
    elif kind == "logsumexp":
        states = np.logaddexp.accumulate(x, axis=0)
    else:
        gates = np.moveaxis(arrays["A"], axis, 0) if "A" in arrays else None
        return Expected(axis, steps, *_forgetful(kind, gates, x, steps))
    largest = np.maximum.accumulate(np.abs(states), axis=0)[steps]
    roundings = 0.0 if kind == "cummax" else _FACTOR * _UNIT
    return Expected(axis, steps, states[steps], roundings * _walk(steps, largest))


def is_right(kind: str, result: np.ndarray, arrays: Arrays) -> bool:
    """Whether a result is the expected one at all steps that are looked at.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    result : ndarray
        The output of a method.
    arrays : mapping of str to ndarray
        Its inputs.
    """
    want = expected(kind, arrays)
    if result.shape != arrays["out"].shape:
        return False
    got = np.moveaxis(result, want.axis, 0)[want.steps].astype("float64")
    return bool((np.abs(got - want.values) <= want.tolerance).all())


def _walk(steps: np.ndarray, largest: np.ndarray, remembered: int | None = None) -> np.ndarray:
    """The root of the steps that are remembered, times the largest state among them."""
    count = np.minimum(steps + 1, remembered) if remembered else steps + 1
    return np.sqrt(count).reshape(-1, *[1] * (largest.ndim - 1)) * largest


def _forgetful(
    kind: str, gates: np.ndarray | None, x: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """States at some steps, and what they may be off by; from the first step on, or windows."""
    if len(x) <= _WALKED:
        windows = [(0, steps)]
    else:
        windows = [(max(0, int(t) + 1 - _REMEMBERED), np.array([t])) for t in steps]
    values, tolerances = [], []
    for first, wanted in windows:
        last = int(wanted[-1]) + 1
        part = None if gates is None else gates[first:last]
        found = _states(kind, part, x[first:last], wanted - first)
        values.append(found[0])
        tolerances.append(_FACTOR * _UNIT * _walk(wanted, found[1], _REMEMBERED))
    return np.concatenate(values), np.concatenate(tolerances)


def _states(
    kind: str, gates: np.ndarray | None, x: np.ndarray, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """States at the wanted steps, and the largest magnitude up to them."""
    h, g, largest = (np.zeros(x.shape[1:]) for _ in range(3))
    states, magnitudes = [], []
    chosen = set(wanted.tolist())
    for t, added in enumerate(x):
        if kind.startswith("affine"):
            assert gates is not None
            h = gates[t].astype("float64") * h + added
        elif kind == "segmented":
            assert gates is not None
            h = np.where(gates[t] > np.float32(0.99), 0, h) + added
        else:
            h, g = added + 1.6 * h - 0.7 * g, h
        np.maximum(largest, np.abs(h), out=largest)
        if t in chosen:
            states.append(h)
            magnitudes.append(largest.copy())
    return np.array(states), np.array(magnitudes)


def _selective(kind: str, arrays: Arrays, steps: np.ndarray) -> Expected:
    """Of outputs that contract states of either sign: the size is that of their terms."""
    inputs = {n: np.asarray(a, "float64") for n, a in arrays.items() if n != "out"}
    # Gates depend on these, whose signs stay.
    kept = ("A", "delta", "delta_bias", "z")
    sizes = {n: a if n in kept else np.abs(a) for n, a in inputs.items()}
    reference = library.LIBRARY["selective_scan"].expected
    values, terms = (
        np.moveaxis(next(iter(reference(given).values())), -1, 0)[steps]
        for given in (inputs, sizes)
    )
    # A half is rounded once, at the end, in units of the value.
    half = 2.0**-7 * np.abs(values) if kind.endswith("bfloat16") else 0.0
    return Expected(-1, steps, values, _SELECTIVE * np.abs(terms) + half)
