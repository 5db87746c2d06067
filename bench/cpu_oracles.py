"""The last step of every lane in float64, so that no wrong kernel is ever fast."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tvm_scan import library

__all__ = ["is_right", "last_step"]


def last_step(kind: str, arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """The expected last step, and the size of what was added up on the way.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    arrays : mapping of str to ndarray
        Its inputs.
    """
    if kind.startswith("selective scan"):
        inputs = {n: np.asarray(a, "float64") for n, a in arrays.items() if n != "out"}
        entry = library.LIBRARY["selective_scan"]
        want = next(iter(entry.expected(inputs).values()))[..., -1]
        return want, float(np.abs(want).max()) * 64
    axis = {"cumsum rows": 0, "affine middle": 1}.get(kind, 1)
    x = np.moveaxis(arrays["X"].astype("float64"), axis, 0)
    size = float(np.abs(x).sum(axis=0).max())
    if kind.startswith("cumsum"):
        return x.sum(axis=0), size
    if kind == "cummax":
        return x.max(axis=0), 1.0
    if kind == "logsumexp":
        return np.logaddexp.reduce(x, axis=0), size
    h, g = np.zeros(x.shape[1:]), np.zeros(x.shape[1:])
    gates = np.moveaxis(arrays["A"], axis, 0).astype("float64") if "A" in arrays else x
    # What happened long ago has faded: gates below 1, resets, and stable poles.
    for t in range(max(0, len(x) - 4096), len(x)):
        if kind.startswith("affine"):
            h = gates[t] * h + x[t]
        elif kind == "segmented":
            h = np.where(gates[t] > np.float32(0.99), 0, h) + x[t]
        else:
            h, g = x[t] + 1.6 * h - 0.7 * g, h
    return h, size


def is_right(kind: str, result: np.ndarray, arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether the last step of a result is the expected one, within what its dtype allows.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    result : ndarray
        The output of a method.
    arrays : mapping of str to ndarray
        Its inputs.
    """
    axis = {"cumsum rows": 0, "affine middle": 1}.get(kind, -1)
    want, size = last_step(kind, arrays)
    off = np.abs(np.take(result, -1, axis=axis).astype("float64") - want)
    if kind.endswith("bfloat16"):
        return bool((off <= 2.0**-7 * np.abs(want).max()).all())
    return bool((off <= 2.0**-18 * size).all())
