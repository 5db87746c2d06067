"""The workloads of ``bench.cpu`` in jax: cumulative functions, ``associative_scan``, ``scan``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["jax_calls"]

Call = Callable[[], Any]
Arrays = Mapping[str, np.ndarray]
#: Cells of the states over all time that ``associative_scan`` keeps, several times.
_MOST = 1 << 26


def jax_calls(kind: str, arrays: Arrays) -> dict[str, Call]:
    """Calls by name, compiled for the arrays' shapes; none where jax is not installed.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    arrays : mapping of str to ndarray
        Inputs.
    """
    try:
        jax = importlib.import_module("jax")
    except ImportError:
        return {}
    if kind.startswith("selective scan"):
        return _selective(jax, arrays)
    if kind in ("segmented", "order 2"):
        return {}
    lax, x = jax.lax, jax.device_put(arrays["X"])
    if kind.startswith("affine"):
        return _affine(jax, jax.device_put(arrays["A"]), x)
    functions = {"cummax": lax.cummax, "logsumexp": lax.cumlogsumexp}
    axis = 0 if kind.endswith("rows") else x.ndim - 1
    return {"jax": _call(jax, lambda v: functions.get(kind, lax.cumsum)(v, axis=axis), x)}


def _call(jax: Any, function: Any, *inputs: Any) -> Call:
    run = jax.jit(function)
    return lambda: run(*inputs).block_until_ready()


def _combine(left: Any, right: Any) -> Any:
    return right[0] * left[0], right[0] * left[1] + right[1]


def _affine(jax: Any, a: Any, x: Any) -> dict[str, Call]:
    def sequential(p: Any, q: Any) -> Any:
        def step(h: Any, now: Any) -> Any:
            h = now[0] * h + now[1]
            return h, h

        first = jax.numpy.zeros_like(q[:, 0])
        over = (jax.numpy.moveaxis(p, 1, 0), jax.numpy.moveaxis(q, 1, 0))
        return jax.numpy.moveaxis(jax.lax.scan(step, first, over)[1], 0, 1)

    def associative(p: Any, q: Any) -> Any:
        return jax.lax.associative_scan(_combine, (p, q), axis=1)[1]

    return {
        "jax associative_scan": _call(jax, associative, a, x),
        "jax lax.scan": _call(jax, sequential, a, x),
    }


def _selective(jax: Any, arrays: Arrays) -> dict[str, Call]:
    np_, names = jax.numpy, ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
    given = [jax.device_put(arrays[n]) for n in names]

    def finish(y: Any, u: Any, d: Any, z: Any) -> Any:
        return ((y + d[:, None] * u) * jax.nn.silu(z)).astype(arrays["u"].dtype)

    def wide(*sequences: Any) -> list[Any]:
        return [s.astype("float32") for s in sequences]

    def sequential(u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any, bias: Any) -> Any:
        u, delta, b, c, z = wide(u, delta, b, c, z)

        def step(h: Any, now: Any) -> Any:
            u_t, dt, b_t, c_t = now
            h = np_.exp(dt[..., None] * a) * h + (dt * u_t)[..., None] * b_t[:, None]
            return h, (h * c_t[:, None]).sum(-1)

        dts = jax.nn.softplus(delta + bias[:, None])
        over = [np_.moveaxis(v, 2, 0) for v in (u, dts, b, c)]
        first = np_.zeros((*u.shape[:2], a.shape[1]))
        return finish(np_.moveaxis(jax.lax.scan(step, first, over)[1], 0, 2), u, d, z)

    def parallel(u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any, bias: Any) -> Any:
        u, delta, b, c, z = wide(u, delta, b, c, z)
        dts = jax.nn.softplus(delta + bias[:, None])
        gates = np_.exp(dts[..., None] * a[:, None])
        inputs = (dts * u)[..., None] * np_.moveaxis(b, 1, 2)[:, None]
        states = jax.lax.associative_scan(_combine, (gates, inputs), axis=2)[1]
        return finish(np_.einsum("bdtn,bnt->bdt", states, c), u, d, z)

    found = {"jax lax.scan": _call(jax, sequential, *given)}
    if arrays["u"].size * arrays["A"].shape[1] <= _MOST:
        found["jax associative_scan"] = _call(jax, parallel, *given)
    return found
