"""Inputs on which every association of a recurrence gives the same bits.

Realistic gates decay: after some dozens of steps a wrong carry is below the rounding error, and a
missing barrier stays unseen. Here gates are -1 or 1 and values are small integers, so that every
partial result is an integer that the dtype holds exactly, every input reaches every later output
at full size, and a test compares for equality. Exponentials are gates of 0 or 1: some states of a
selective scan keep all that they were given, the others forget it at some steps, so that a gate
of another step, channel or state shows.

The bounds hold for float32, whose integers are exact up to 2^24: lengths up to `MAX_LENGTH`.
"""

from dataclasses import dataclass, field

import numpy as np

from tvm_scan.library import LIBRARY
from tvm_scan.library.linear import LINEAR_LAYOUTS

MAX_LENGTH = 2**22
"""Values are at most 3, so sums stay below 3 * 2^22 < 2^24."""

MAX_SELECTIVE_LENGTH = 2**15
"""A step adds at most 2 * 2 * 2 to each of 16 states, contracted with values up to 2:
16 * 8 * 2 * 2^15 = 2^23, plus the skip."""


@dataclass(frozen=True)
class ExactCase:
    """Options for the factory that make exactness possible, and inputs for them."""

    options: dict[str, object]
    inputs: dict[str, np.ndarray] = field(repr=False)


def exact_case(
    name: str,
    rng: np.random.Generator,
    *sizes: int,
    dtype: str = "float32",
    **options: object,
) -> ExactCase:
    """Return exact inputs of the library's recurrence `name`.

    Parameters
    ----------
    name : str
        A key of `tvm_scan.library.LIBRARY`.
    sizes : int
        The sizes that the factory takes, all given.
    options : dict
        The factory's options. For ``ema`` a constant `alpha` is replaced by 2 (its gate is then
        -1), and for ``selective_scan`` softplus and the gate z, which are not exact, are off.
    """
    if name == "ema" and options.get("alpha") != "lane":
        options["alpha"] = 2.0
    if name == "selective_scan":
        options |= {"softplus": False, "has_z": False}
    shapes = LIBRARY[name].example_inputs(rng, *sizes, dtype=dtype, **options)
    length = sizes[LIBRARY[name].size_names.index("length")]
    limit = MAX_SELECTIVE_LENGTH if name == "selective_scan" else MAX_LENGTH
    assert length <= limit, f"{name} is exact up to length {limit}, not {length}"
    inputs = {
        key: _exact(name, key, rng, array.shape, options).astype(dtype)
        for key, array in shapes.items()
    }
    return ExactCase(options, inputs)


def _exact(
    name: str,
    key: str,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    options: dict[str, object],
) -> np.ndarray:
    if name in ("cummax", "cummin"):
        return _wandering(rng, shape, options, rising=name == "cummax")
    if name == "cumprod" or (name, key) == ("linear_recurrence", "A"):
        return rng.choice([-1, 1], shape)
    if key == "ALPHA":
        return rng.choice([0, 2], shape)
    if name == "selective_scan":
        # exp(0) is 1 and exp(-1024) is 0 on every target and in every dtype.
        if key == "A":
            rates = rng.choice([0, -1024], shape)
            channels = np.arange(shape[0])
            if shape[1] > 1:  # one state of each channel keeps everything
                rates[channels, channels % shape[1]] = 0
            return rates
        if key == "delta":
            return rng.choice([0, 1], shape, p=[0.75, 0.25])
        if key == "delta_bias":
            return rng.integers(0, 2, shape)
        return rng.integers(-2, 3, shape)
    return rng.integers(-3, 4, shape)


def _wandering(
    rng: np.random.Generator, shape: tuple[int, ...], options: dict[str, object], *, rising: bool
) -> np.ndarray:
    """Noise on a slow slope: the extremum changes often, and mostly comes from an earlier step."""
    axis = 0 if options.get("axis", -1) == 0 else -1
    slope = np.arange(shape[axis]) // 8
    if options.get("reverse"):
        slope = slope[::-1]
    slope = slope[:, None] if axis == 0 else slope
    values = rng.integers(-9, 10, shape) + slope
    return values if rising else -values


def time_axis(name: str, options: dict[str, object]) -> int:
    """Return the position of time in the arrays of the library's recurrence `name`."""
    layout = options.get("layout")
    if name == "selective_scan":
        return 2 if layout in (None, "bdl") else 1
    if name == "linear_recurrence":
        return LINEAR_LAYOUTS[layout or "dl"]
    if name == "ema":
        return 0 if layout == "ld" else 1
    return 0 if options.get("axis") == 0 else 1
