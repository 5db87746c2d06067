"""Realistic inputs for each recurrence: values that stay finite and do not decay to nothing.

Every function takes a NumPy generator and the arguments of its factory, with sizes as numbers,
and returns the arrays that the function reads, in the order of its parameters.
"""

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it
import numpy as np

from .linear import LINEAR_LAYOUTS

Arrays = dict[str, np.ndarray]


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return standard normal floats, or integers from -9 to 9."""
    if dtype.startswith("float"):
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(-9, 10, shape).astype(dtype)


def _gates(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, low: float) -> np.ndarray:
    """Return floats from `low` to 1, or integers -1 and 1."""
    if dtype.startswith("float"):
        return rng.uniform(low, 1, shape).astype(dtype)
    return rng.choice(np.array([-1, 1], dtype), shape)


def cumsum_inputs(
    rng: np.random.Generator,
    rows: int,
    length: int,
    dtype: str = "float32",
    *,
    axis: int = -1,
    **_options: object,
) -> Arrays:
    """Make the inputs of `cumsum`, `cummax` and `cummin`."""
    return {"X": _values(rng, (length, rows) if axis == 0 else (rows, length), dtype)}


cummax_inputs = cummin_inputs = cumsum_inputs


def cumprod_inputs(
    rng: np.random.Generator,
    rows: int,
    length: int,
    dtype: str = "float32",
    *,
    axis: int = -1,
    **_options: object,
) -> Arrays:
    """Make the inputs of `cumprod`: factors near 1, whose products neither vanish nor overflow."""
    shape = (length, rows) if axis == 0 else (rows, length)
    if not dtype.startswith("float"):
        return {"X": _gates(rng, shape, dtype, 1)}
    return {"X": np.exp(0.01 * rng.standard_normal(shape)).astype(dtype)}


def ema_inputs(
    rng: np.random.Generator,
    lanes: int,
    length: int,
    dtype: str = "float32",
    *,
    alpha: float | str = 0.1,
    initial: str = "zero",
    layout: str = "dl",
) -> Arrays:
    """Make the inputs of `ema`."""
    arrays = {"X": _values(rng, (length, lanes) if layout == "ld" else (lanes, length), dtype)}
    if alpha == "lane":
        arrays["ALPHA"] = rng.uniform(0.01, 0.5, lanes).astype(dtype)
    if initial == "buffer":
        arrays["H0"] = _values(rng, (lanes,), dtype)
    return arrays


def linear_recurrence_inputs(
    rng: np.random.Generator,
    lanes: int,
    length: int,
    dtype: str = "float32",
    *,
    batch: int = 1,
    layout: str = "dl",
    gate: float | str = "time",
    initial_state: bool = False,
    **_options: object,
) -> Arrays:
    """Make the inputs of `linear_recurrence`."""
    state = (batch, lanes) if layout.startswith("b") else (lanes,)
    time = LINEAR_LAYOUTS[layout]
    shape = (*state[:time], length, *state[time:])
    arrays = {}
    if gate in ("time", "lane"):
        arrays["A"] = _gates(rng, shape if gate == "time" else (lanes,), dtype, 0.8)
    arrays["X"] = _values(rng, shape, dtype)
    if initial_state:
        arrays["H0"] = _values(rng, state, dtype)
    return arrays


def selective_scan_inputs(
    rng: np.random.Generator,
    batch: int,
    channels: int,
    length: int,
    states: int = 16,
    dtype: str = "float32",
    *,
    layout: str = "bdl",
    has_bias: bool = True,
    softplus: bool = True,
    has_D: bool = True,
    has_z: bool = True,
    initial_state: bool = False,
    **_options: object,
) -> Arrays:
    """Make the inputs of `selective_scan`, scaled as in Mamba at initialisation.

    A is -(1 .. states), and the step sizes lie around 0.001 to 0.1.
    """

    def sequence(size: int) -> np.ndarray:
        return rng.standard_normal((batch, size, length) if bdl else (batch, length, size))

    bdl = layout == "bdl"
    steps = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), channels))
    # The inverse of softplus, without cancellation for small steps.
    bias = steps + np.log(-np.expm1(-steps))
    centre = bias if softplus else steps
    along = centre[:, None] if bdl else centre
    arrays = {"u": sequence(channels)}
    if softplus:
        arrays["delta"] = 0.3 * sequence(channels) + (0 if has_bias else along)
    else:
        share = 0.5 if has_bias else 1.0
        arrays["delta"] = share * along * np.exp(0.3 * sequence(channels))
        bias = 0.5 * steps
    arrays["A"] = -np.tile(np.arange(1.0, states + 1), (channels, 1))
    arrays["B"] = sequence(states)
    arrays["C"] = sequence(states)
    if has_D:
        arrays["D"] = np.ones(channels)
    if has_z:
        arrays["z"] = sequence(channels)
    if has_bias:
        arrays["delta_bias"] = bias
    if initial_state:
        arrays["h0"] = rng.standard_normal((batch, channels, states))
    halves = dtype in ("float16", "bfloat16")
    sequences = ("u", "delta", "B", "C", "z") if halves else tuple(arrays)
    return {
        name: np.ascontiguousarray(array, dtype if name in sequences else "float32")
        for name, array in arrays.items()
    }
