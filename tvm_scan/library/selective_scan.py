"""The selective scan of Mamba (Gu and Dao 2023, arXiv 2312.00752), options and NumPy twin.

The loops are in `selective_scan_loops`.
"""

from functools import lru_cache

import numpy as np
from tvm import tirx

from .arguments import (
    FLOAT_DTYPES,
    FUNC_ATTRS,
    check_choice,
    check_flags,
    keep_parameters,
    make_extent,
)
from .selective_scan_loops import SelectiveScanForm, blocks_loop, step_loop

SELECTIVE_SCAN_LAYOUTS = ("bdl", "bld")
SELECTIVE_SCAN_FORMS = ("blocks", "step")


@lru_cache(maxsize=None, typed=True)
def selective_scan(
    batch: int | None,
    channels: int | None,
    length: int | None,
    states: int | None = 16,
    dtype: str = "float32",
    *,
    layout: str = "bdl",
    form: str = "blocks",
    has_bias: bool = True,
    softplus: bool = True,
    has_D: bool = True,
    has_z: bool = True,
    initial_state: bool = False,
    final_state: bool = False,
) -> tirx.PrimFunc:
    """Build the sequential selective scan as one plain loop nest.

    ::

        dt[t] = softplus(delta[t] + delta_bias)
        h[t]  = exp(dt[t] A) h[t-1] + dt[t] B[t] u[t]        for each of the states
        y[t]  = sum over the states of C[t] h[t] + D u[t]
        out[t] = y[t] silu(z[t])

    Parameters
    ----------
    batch, channels, length, states : int or None
        Sizes; None makes the extent symbolic. B and C are shared by all channels.
    dtype : str
        ``float32`` or ``float64``, for all arrays; with ``float16`` or ``bfloat16`` the sequences
        (u, delta, B, C, z and out) are halves, the rest, the states and a step float32.
    layout : str
        ``"bdl"``: u, delta, z and out have shape (batch, channels, length), B and C (batch,
        states, length). ``"bld"``: (batch, length, channels) and (batch, length, states).
    form : str
        ``"blocks"``: one block per formula (step size, state, contraction, output);
        ``"step"``: one block per time step. They compute the same.
    has_bias, softplus, has_D, has_z : bool
        Whether delta has a bias, goes through softplus, and whether there are a skip connection
        and a gate.
    initial_state, final_state : bool
        Whether the state before the first step is read, and the one after the last step written.
        Both have shape (batch, channels, states).

    Returns
    -------
    tirx.PrimFunc
        ``selective_scan(u, delta, A, B, C, [D,] [z,] [delta_bias,] [h0,] out, [h_final])``;
        `A` has shape (channels, states), `D` and `delta_bias` (channels,); `out` and `h_final`
        are written.

    Raises
    ------
    ValueError
        For an argument outside these choices.
    """
    owner = "selective_scan"
    check_choice(owner, "dtype", dtype, (*FLOAT_DTYPES, "float16", "bfloat16"))
    check_choice(owner, "layout", layout, SELECTIVE_SCAN_LAYOUTS)
    check_choice(owner, "form", form, SELECTIVE_SCAN_FORMS)
    options = {
        "has_bias": has_bias,
        "softplus": softplus,
        "has_D": has_D,
        "has_z": has_z,
        "initial_state": initial_state,
        "final_state": final_state,
    }
    check_flags(owner, **options)
    checked = SelectiveScanForm(
        batch=make_extent(owner, "batch", batch),
        channels=make_extent(owner, "channels", channels),
        length=make_extent(owner, "length", length),
        states=make_extent(owner, "states", states),
        dtype=dtype,
        layout=layout,
        attrs={**FUNC_ATTRS, "global_symbol": owner},
        **options,
    )
    func = blocks_loop(checked) if form == "blocks" else step_loop(checked)
    absent = {
        "D": not has_D,
        "z": not has_z,
        "delta_bias": not has_bias,
        "h0": not initial_state,
        "h_final": not final_state,
    }
    return keep_parameters(func, [p.name for p in func.params if not absent.get(p.name, False)])


def softplus_reference(x: np.ndarray) -> np.ndarray:
    """Compute ``log(1 + exp(x))`` in float64 without overflow."""
    x = np.asarray(x, np.float64)
    result: np.ndarray = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return result


def silu_reference(x: np.ndarray) -> np.ndarray:
    """Compute ``x sigmoid(x)`` in float64; exp(-x) may reach infinity, whose quotient is -0."""
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore"):
        result: np.ndarray = x / (1 + np.exp(-x))
    return result


def selective_scan_reference(
    u: np.ndarray,
    delta: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    C: np.ndarray,
    D: np.ndarray | None = None,
    z: np.ndarray | None = None,
    delta_bias: np.ndarray | None = None,
    h0: np.ndarray | None = None,
    *,
    layout: str = "bdl",
    softplus: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `selective_scan` step after step in float64.

    Shapes are those of `selective_scan`; an option whose array is None is absent.

    Returns
    -------
    tuple of numpy.ndarray
        The output, with the shape of `u`, and the final state (batch, channels, states); float64.
    """
    check_choice("selective_scan_reference", "layout", layout, SELECTIVE_SCAN_LAYOUTS)
    axis = 2 if layout == "bdl" else 1
    # Time first: us[t] is (batch, channels), Bs[t] is (batch, states).
    us, deltas, Bs, Cs = (
        np.moveaxis(np.asarray(array, np.float64), axis, 0) for array in (u, delta, B, C)
    )
    A = np.asarray(A, np.float64)
    dts = deltas if delta_bias is None else deltas + np.asarray(delta_bias, np.float64)
    dts = softplus_reference(dts) if softplus else dts
    h = np.zeros((*us.shape[1:], A.shape[1])) if h0 is None else np.array(h0, np.float64)
    ys = np.empty_like(us)
    for t in range(len(us)):
        drive = (dts[t] * us[t])[:, :, None] * Bs[t][:, None, :]
        h = np.exp(dts[t][:, :, None] * A) * h + drive
        ys[t] = (h * Cs[t][:, None, :]).sum(-1)
    if D is not None:
        ys = ys + np.asarray(D, np.float64) * us
    y = np.moveaxis(ys, 0, axis)
    return (y if z is None else y * silu_reference(z)), h
