"""The library's recurrences with their options, inputs, and what the float64 twin makes of them."""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import cycle, product

import numpy as np
from tvm import tirx

from tests.support.exact_inputs import exact_case
from tests.support.library_runs import Arrays, error_bound
from tests.support.tiers import longer
from tvm_scan import ScanPlan
from tvm_scan.library import LIBRARY
from tvm_scan.library.arguments import NUMBER_DTYPES
from tvm_scan.schedules.gpu.thread.plans import TreePlan

SEED = 20240229
LENGTHS = longer((0, 1, 2, 33, 1025), (0, 1, 2, 31, 32, 33, 1023, 1024, 1025, 4099))

_SIZES = {"rows": 13, "lanes": 13, "batch": 2, "channels": 11, "states": 3}
"""Primes, so that no block of lanes divides them."""


@dataclass(frozen=True)
class Case:
    """A recurrence of the library, a dtype, and options of its factory.

    Attributes
    ----------
    name : str
        A key of `LIBRARY`.
    dtype : str
        Of all arrays.
    options : tuple of (str, object)
        Keyword arguments of the factory.
    sizes : tuple of (str, int)
        Sizes other than the usual ones.
    """

    name: str
    dtype: str = "float32"
    options: tuple[tuple[str, object], ...] = ()
    sizes: tuple[tuple[str, int], ...] = field(default=())

    def __str__(self) -> str:
        parts = [f"{key}={value}" for key, value in (*self.options, *self.sizes)]
        return "-".join([self.name, self.dtype, *parts])

    def shape(self, length: int | None) -> tuple[int | None, ...]:
        """The factory's positional arguments for numbers."""
        known = {**_SIZES, **dict(self.sizes), "length": length}
        return tuple(known[size] for size in LIBRARY[self.name].size_names)

    def function(
        self, length: int | None, options: dict[str, object] | None = None
    ) -> tirx.PrimFunc:
        """The sequential loop; all extents but the states are symbolic where length is None."""
        entry = LIBRARY[self.name]
        chosen = dict(self.options) if options is None else options
        if length is not None:
            return entry.factory(*self.shape(length), self.dtype, **chosen)
        if "batch" in chosen:
            chosen = {**chosen, "batch": None}
        states = dict(zip(entry.size_names, self.shape(None), strict=True))
        sizes = [states[size] if size == "states" else None for size in entry.size_names]
        return entry.factory(*sizes, self.dtype, **chosen)


@lru_cache(maxsize=64)
def exact_inputs(case: Case, length: int) -> tuple[dict[str, object], Arrays, Arrays]:
    """Options, inputs that make every order of the arithmetic exact, and the twin's outputs."""
    rng = np.random.default_rng(SEED + length)
    made = exact_case(case.name, rng, *case.shape(length), dtype=case.dtype, **dict(case.options))
    return made.options, made.inputs, LIBRARY[case.name].expected(made.inputs, **made.options)


@lru_cache(maxsize=64)
def random_inputs(case: Case, length: int) -> tuple[Arrays, Arrays]:
    """Realistic inputs and the twin's outputs."""
    rng = np.random.default_rng(SEED + length)
    options = dict(case.options)
    entry = LIBRARY[case.name]
    inputs = entry.example_inputs(rng, *case.shape(length), dtype=case.dtype, **options)
    return inputs, entry.expected(inputs, **options)


@lru_cache(maxsize=64)
def sequential_bound(case: Case, length: int, extra: int) -> Arrays:
    """Error bound of `length` + `extra` sequential steps on the random inputs."""
    inputs, _ = random_inputs(case, length)
    return error_bound(case.name, inputs, dict(case.options), length + extra)


def check_exact(case: Case, length: int, got: Arrays) -> None:
    """Assert that every output of exact inputs is the twin's."""
    _, _, want = exact_inputs(case, length)
    for key in want:
        np.testing.assert_array_equal(got[key], want[key], f"length {length}, {key}")


def check_random(case: Case, length: int, got: Arrays, plan: ScanPlan | None) -> None:
    """Assert that every output of random inputs is within the bound of the plan.

    A term ``x[s] a[s+1] .. a[t]`` of the result is rounded once per gate in the product and once
    per sum on its way, whatever the association: a step of a chunk costs it one product and one
    sum, as in the loop, and so does a combination of two elements. So the bound is that of the
    sequential loop with as many more steps as there are combinations on the longest way from a
    chunk to an output: chunks (or tiles) in order, and two sweeps of a tree.
    """
    _, want = random_inputs(case, length)
    exact = case.dtype.startswith("int") or case.name in ("cummax", "cummin")
    bound = None if exact else sequential_bound(case, length, combinations(plan, length))
    for key in want:
        if bound is None:
            np.testing.assert_array_equal(got[key], want[key], f"length {length}, {key}")
        else:
            excess = np.abs(got[key] - want[key]) - bound[key]
            assert (excess <= 0).all(), f"length {length}, {key}: over by {excess.max()}"


def combinations(plan: ScanPlan | None, length: int) -> int:
    """Combinations of elements on the longest way from an input to an output."""
    if plan is None:
        return 64  # more than a default plan makes at the lengths of these tests
    if not isinstance(plan, TreePlan):
        return plan.chunks
    tiles = -(-length // plan.tile)
    return tiles + 2 * plan.threads_per_block.bit_length()


def cases() -> list[Case]:
    """Every option at least once, not their whole product."""
    return [*_cumulative(), *_ema(), *_linear(), *_selective()]


_BOOLS = (False, True)


def _cumulative():
    dtypes = cycle(NUMBER_DTYPES)
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        for axis, reverse, exclusive in product((-1, 0), _BOOLS, _BOOLS):
            options = (("axis", axis), ("reverse", reverse), ("exclusive", exclusive))
            yield Case(name, next(dtypes), options)
        next(dtypes)  # so that each flag meets each dtype
    yield Case("cumsum", sizes=(("rows", 70),))
    yield Case("cumsum", options=(("axis", 0),), sizes=(("rows", 131),))


def _ema():
    dtypes = cycle(("float32", "float32", "float64"))
    layouts = cycle(("dl", "ld"))
    for alpha, initial in product((0.1, "lane"), ("zero", "first", "buffer")):
        layout = next(layouts)
        options = (("alpha", alpha), ("initial", initial), ("layout", layout))
        yield Case("ema", next(dtypes), options)
        next(layouts) if initial == "buffer" else None


def _linear():
    layouts = cycle(("dl", "ld", "bdl", "bld", "dl"))
    gates = cycle(("time", "lane", -1))
    dtypes = cycle(("float32", "float64", "float32", "int32", "float32", "int64"))
    for flags in product(_BOOLS, repeat=4):
        names = ("initial_state", "final_state", "reverse", "exclusive")
        options = [
            *zip(names, flags, strict=True),
            ("layout", next(layouts)),
            ("gate", next(gates)),
        ]
        if options[-2][1].startswith("b"):
            options.append(("batch", 2))
        yield Case("linear_recurrence", next(dtypes), tuple(options))


def _selective():
    both = (("initial_state", True), ("final_state", True))
    for layout, form in product(("bdl", "bld"), ("blocks", "step")):
        yield Case("selective_scan", "float32", (("layout", layout), ("form", form), *both))
    yield Case("selective_scan", "float64")
    off = ("has_bias", "softplus", "has_D", "has_z")
    yield Case("selective_scan", "float32", tuple((name, False) for name in off))
    yield Case("selective_scan", "float32", (("layout", "bld"),), (("channels", 37),))
