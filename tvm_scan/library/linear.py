"""The first-order linear recurrence ``h[t] = a[t] h[t-1] + x[t]`` with its options.

Here: arguments, the public factory and the NumPy twin. The loops are in `linear_loops`.
"""

import math
from functools import lru_cache

import numpy as np
from tvm import tirx

from .arguments import (
    FUNC_ATTRS,
    NUMBER_DTYPES,
    check_choice,
    check_flags,
    keep_parameters,
    make_extent,
)
from .linear_loops import LinearForm, history_loop, state_loop

LINEAR_LAYOUTS = {"dl": 1, "ld": 0, "bdl": 2, "bld": 1}
"""Layout -> the position of time. b: batch, d: lane, l: time."""


def _check_gate(gate: float | str, dtype: str) -> None:
    if gate in ("time", "lane"):
        return
    number = isinstance(gate, (int, float)) and not isinstance(gate, bool)
    whole = number and (dtype.startswith("float") or float(gate).is_integer())
    if not number or not math.isfinite(float(gate)) or not whole:
        raise ValueError(
            f"linear_recurrence: expected gate to be 'time', 'lane' or a finite {dtype} number, "
            f"got {gate!r}; pass 'time' for a gate per element, 'lane' for one per lane, or a "
            f"constant that {dtype} can hold"
        )


@lru_cache(maxsize=None, typed=True)
def linear_recurrence(
    lanes: int | None,
    length: int | None,
    dtype: str = "float32",
    *,
    batch: int | None = 1,
    layout: str = "dl",
    gate: float | str = "time",
    initial_state: bool = False,
    final_state: bool = False,
    reverse: bool = False,
    exclusive: bool = False,
) -> tirx.PrimFunc:
    """Build the sequential linear recurrence ``h[t] = a[t] * h[t-1] + x[t]``.

    Parameters
    ----------
    lanes, length : int or None
        Number of lanes and of time steps; None makes the extent symbolic.
    dtype : str
        ``float32``, ``float64``, ``int32`` or ``int64``. Integers wrap around.
    batch : int or None
        Number of batches, for the layouts with a "b".
    layout : str
        The order of the axes: ``"dl"``, ``"ld"``, ``"bdl"`` or ``"bld"`` (batch, lane, time).
    gate : float or str
        What ``a`` is: ``"time"``, an array shaped like `X`; ``"lane"``, an array of shape
        (lanes,), shared by all batches and steps; or a constant.
    initial_state : bool
        Read ``h[-1]`` from a buffer. Without it ``h[-1]`` is 0.
    final_state : bool
        Also write the last state, which lives in that buffer during the loop. At length 0 it is
        the initial state.
    reverse : bool
        Scan from the last step to the first.
    exclusive : bool
        Emit the state before the update instead of after it.

    Returns
    -------
    tirx.PrimFunc
        ``linear_recurrence([A,] X, [H0,] H, [HN])``; `H` and `HN` are written. `H0` and `HN`
        have the shape of `X` without time. Without `exclusive` and `final_state` the loop
        reads its history ``H[t-1]``; else it keeps a state in place.

    Raises
    ------
    ValueError
        For an argument outside these choices, or a batch with a layout that has none.
    """
    owner = "linear_recurrence"
    check_choice(owner, "dtype", dtype, NUMBER_DTYPES)
    check_choice(owner, "layout", layout, tuple(LINEAR_LAYOUTS))
    check_flags(
        owner,
        initial_state=initial_state,
        final_state=final_state,
        reverse=reverse,
        exclusive=exclusive,
    )
    _check_gate(gate, dtype)
    batched = layout.startswith("b")
    if not batched and batch != 1:
        raise ValueError(
            f"{owner}: expected batch=1 with layout {layout!r}, got batch={batch!r}; "
            f"pass layout='bdl' or 'bld', or leave batch out"
        )
    form = LinearForm(
        batch=make_extent(owner, "batch", batch) if batched else None,
        lanes=make_extent(owner, "lanes", lanes),
        length=make_extent(owner, "length", length),
        dtype=dtype,
        time_axis=LINEAR_LAYOUTS[layout],
        gate=gate,
        initial_state=initial_state,
        final_state=final_state,
        reverse=reverse,
        exclusive=exclusive,
        attrs={**FUNC_ATTRS, "global_symbol": owner},
    )
    # The history form can only emit what it carries: the state after the update.
    func = state_loop(form) if exclusive or final_state else history_loop(form)
    present = {
        "A": gate in ("time", "lane"),
        "X": True,
        "H0": initial_state,
        "H": True,
        "HN": final_state,
    }
    return keep_parameters(func, [name for name, is_there in present.items() if is_there])


def linear_recurrence_reference(
    a: np.ndarray | float,
    x: np.ndarray,
    h0: np.ndarray | None = None,
    *,
    layout: str = "dl",
    reverse: bool = False,
    exclusive: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `linear_recurrence` step after step: floats in float64, integers in their dtype.

    Parameters
    ----------
    a : numpy.ndarray or float
        The gate: the shape of `x`, or (lanes,), or a number.
    x : numpy.ndarray
        The inputs, axes ordered by `layout`.
    h0 : numpy.ndarray, optional
        The initial state: the shape of `x` without time. Without it, zero.

    Returns
    -------
    tuple of numpy.ndarray
        All states (the shape of `x`) and the final state (that shape without time).
    """
    check_choice("linear_recurrence_reference", "layout", layout, tuple(LINEAR_LAYOUTS))
    x = np.asarray(x)
    dtype = np.dtype(np.float64) if x.dtype.kind == "f" else x.dtype
    axis = LINEAR_LAYOUTS[layout]
    steps = np.moveaxis(x.astype(dtype), axis, 0)
    gates = np.asarray(a, dtype)
    gates = np.moveaxis(gates, axis, 0) if gates.ndim == x.ndim else gates
    varies = gates.ndim == x.ndim
    carry = np.zeros(steps.shape[1:], dtype) if h0 is None else np.asarray(h0, dtype)
    h = np.empty_like(steps)
    times = range(len(steps))
    for t in reversed(times) if reverse else times:
        after = (gates[t] if varies else gates) * carry + steps[t]
        h[t] = carry if exclusive else after
        carry = after
    return np.moveaxis(h, 0, axis), carry
