"""Random recurrences: families, sizes, dtypes and layouts that a default plan has to serve."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from math import log2
from typing import Any

import ml_dtypes  # noqa: F401  NumPy knows bfloat16 by it
import numpy as np
from tvm.script import from_source
from tvm.script import tirx as T

from bench.cpu_loops import loop_of
from tvm_scan.library import LIBRARY

__all__ = ["LARGEST", "Case", "inputs_of", "random_case"]

#: Logarithms of the elements of one array.
SMALLEST, LARGEST = 10, 23

_TEXTS = {
    # Families that the library has no factory of, rows along time.
    "resets": "T.if_then_else(R[r, t] > 0, T.float32(0), A[r, t] * {before}) + X[r, t]",
    "restarts": "T.if_then_else(R[r, t] > 0, T.float32(0), {before}) + X[r, t]",
    "affine integers": "A[r, t] * {before} + X[r, t]",
    "clamped": "T.max(T.min({before} + X[r, t], T.float32(100)), T.float32(-100))",
}
_PARAMS = {
    "resets": (("A", "float32"), ("R", "int32"), ("X", "float32")),
    "restarts": (("R", "int32"), ("X", "float32")),
    "affine integers": (("A", "int32"), ("X", "int32")),
    "clamped": (("X", "float32"),),
}
_LOOP = """
@T.prim_func(s_tir=True)
def scan({params}):
    for r in range({rows}):
        for t in range({length}):
            H[r, t] = {step}
"""
#: Family -> how often it is drawn, among the weights of all.
_FAMILIES = {
    "cumsum": 5, "linear_recurrence": 6, "ema": 3, "cummax": 3, "cumprod": 1, "resets": 2,
    "restarts": 1, "affine integers": 1, "clamped": 1, "logsumexp": 1, "order 2": 1,
    "selective_scan": 3, "narrow": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A recurrence at one size.

    Attributes
    ----------
    family : str
        A name of the library, or of a loop of this file.
    sizes : tuple of int
        Lanes and steps; batch, channels, steps and states of a selective scan.
    options : dict
        Of the library's factory.
    """

    family: str
    sizes: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name, sizes and options."""
        extra = "".join(f" {key}={value}" for key, value in self.options.items())
        return f"{self.family}{self.sizes}{extra}"

    @property
    def guesses(self) -> bool:
        """Whether scalar code guesses: which integer is larger, or whether a step starts anew."""
        maxima = self.family == "cummax" and "int" in self.options.get("dtype", "")
        return maxima or self.family in ("resets", "restarts")

    @property
    def func(self) -> Any:
        """The sequential function."""
        if self.family in LIBRARY:
            return LIBRARY[self.family].factory(*self.sizes, **self.options)
        rows, length = self.sizes
        if self.family in ("logsumexp", "order 2"):
            return loop_of(self.family, (rows, length))
        if self.family == "narrow":
            params, step = (("X", "float16"), ("H", "float16")), _NARROW
        else:
            named = _PARAMS[self.family]
            wide = named[-1][1]
            params = (*named, ("H", wide))
            before = f"T.if_then_else(t > 0, H[r, t - 1], T.{wide}(0))"
            step = _TEXTS[self.family].format(before=before)
        shape = f"({rows}, {length})"
        args = ", ".join(f'{name}: T.Buffer({shape}, "{dtype}")' for name, dtype in params)
        text = _LOOP.format(params=args, rows=rows, length=length, step=step)
        return from_source(text, {"T": T})


_NARROW = (
    'T.Cast("float16", T.Cast("float32", T.if_then_else(t > 0, H[r, t - 1], T.float16(0)))'
    ' * T.float32(0.9) + T.Cast("float32", X[r, t]))'
)


def random_case(rng: random.Random) -> Case:
    """Draw a case; sizes are uniform in their logarithms, in a quarter of cases powers of two."""
    round_ = _to_power if rng.random() < 0.25 else round
    family = rng.choices(list(_FAMILIES), list(_FAMILIES.values()))[0]
    total = rng.uniform(SMALLEST, LARGEST)
    if family == "selective_scan":
        states = rng.choice([8, 16, 16])
        batch = rng.choice([1, 1, 2, 4])
        rest = max(6.0, min(total, 19.0) - np.log2(batch))
        length = round_(2 ** rng.uniform(3, rest - 2))
        channels = max(1, round_(2**rest / length))
        return Case(
            family, (batch, channels, length, states), {"layout": rng.choice(["bdl", "bld"])}
        )
    rows = round_(_lanes(rng, total))
    length = max(4, round_(2**total / rows))
    options: dict[str, Any] = {}
    if family == "logsumexp":
        # Of more steps the sum of a float32 loop stands still, and a scan's does not.
        length = min(length, 1 << 20)
    if family in ("cumsum", "cummax", "cumprod"):
        options["dtype"] = rng.choice(["float32"] * 3 + ["float64", "int32", "int64"])
        if family == "cumprod":
            options["dtype"] = rng.choice(["float32", "float64"])
        if rng.random() < 0.3:
            options["axis"] = 0
        if rng.random() < 0.15:
            options["reverse"] = True
    elif family in ("ema", "linear_recurrence"):
        options["layout"] = rng.choice(["dl", "dl", "ld"])
        if rng.random() < 0.15:
            options["dtype"] = "float64"
        if family == "linear_recurrence":
            batch = rng.choice([1, 1, 1, 2, 8])
            if rows % batch == 0 and rows > batch:
                options["batch"], rows = batch, rows // batch
                options["layout"] = "b" + options["layout"]
            if rng.random() < 0.15:
                options["reverse"] = True
            if rng.random() < 0.15:
                options["final_state"] = True
    return Case(family, (rows, length), {k: v for k, v in options.items() if v is not False})


def _to_power(size: float) -> int:
    """The power of two that is nearest by its logarithm, as models have sizes."""
    return 1 << max(0, round(log2(size)))


def _lanes(rng: random.Random, total: float) -> int:
    """One row, a few, as many as steps, many short ones."""
    kind = rng.choice(["one", "few", "some", "any", "many"])
    if kind == "one":
        return 1
    if kind == "few":
        return rng.randint(2, 15)
    if kind == "some":
        return rng.choice([16, 32, 64, 100])
    if kind == "many":
        return max(1, round(2 ** (total - rng.uniform(2, 6))))
    return max(1, round(2 ** rng.uniform(0, total - 2)))


def inputs_of(case: Case) -> list[np.ndarray]:
    """Arrays for what the function reads, in the order of its parameters."""
    rng = np.random.default_rng(0)
    if case.family in LIBRARY:
        made = LIBRARY[case.family].example_inputs(rng, *case.sizes, **case.options)
        return [np.ascontiguousarray(v) for v in made.values()]
    found = []
    for param in list(case.func.params)[:-1]:
        shape = [int(e) for e in param.ty.shape]
        dtype, name = str(param.ty.dtype), str(param.name)
        if name == "R":
            value = rng.random(shape) < 0.01
        elif dtype.startswith("int"):
            value = rng.integers(-9, 10, shape)
        elif name == "A":
            value = rng.uniform(0.9, 1, shape)
        else:
            value = rng.standard_normal(shape)
        found.append(np.asarray(value).astype(dtype))
    return found
