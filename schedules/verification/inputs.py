"""What ``verify`` runs a loop and its scan on: inputs that are meant to tell them apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from tvm_scan import tir
from tvm_scan.algebra import Automaton
from tvm_scan.algebra.literal import is_float
from tvm_scan.recurrence import Recurrence

__all__ = ["CASES", "STEPS", "Case", "cases", "index_limits"]

#: Steps of a symbolic length, and other symbolic extents: odd, so that no tile divides them.
STEPS, _OTHERS = 517, (3, 5, 7)
CASES = ("random", "decaying", "growing", "zeros", "denormal", "nan", "infinity")
#: Random relative changes of the inputs, of which the loop says what they do to its results.
_CHANGES = 3

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """Arguments of a function.

    Attributes
    ----------
    kind : str
        One of ``CASES``.
    arrays : dict of str to ndarray
        By the names of the parameters, in order.
    base : Case or None
        The case that this one is, but for one value that is not finite.
    spoiled : str
        The input that has this value.
    """

    kind: str
    arrays: Arrays
    base: Case | None = None
    spoiled: str = ""

    def changed(self, relative: float, seed: int) -> Iterator[Arrays]:
        """The same arguments, with floats changed at random by a little."""
        rng = np.random.default_rng(seed)
        for _ in range(_CHANGES):
            yield {name: _changed(array, relative, rng) for name, array in self.arrays.items()}


def cases(func: tirx.PrimFunc, found: Recurrence, seed: int) -> Iterator[Case]:
    """Every kind that means something to the dtypes of a function.

    A value that is not finite is put into the middle of one input at a time: together they would
    hide what each of them does.

    Parameters
    ----------
    func : PrimFunc
        Symbolic extents get small odd values, the steps ``STEPS``.
    found : Recurrence
        Of it.
    seed : int
        Of the random values.
    """
    shapes = _shapes(func, found)
    limits = index_limits(func, found)
    read = tir.buffers_loaded(func.body)
    floats = [str(p.name) for p in func.params if is_float(tir.dtype_of(p))]
    inputs = [str(p.name) for p in func.params if p in read and str(p.name) in floats]
    made = {}
    for kind in CASES[:5] if floats else ("random", "zeros"):
        rng = np.random.default_rng(seed)
        arrays = {
            str(p.name): _values(kind, shape, tir.dtype_of(p), limits.get(p), rng)
            for p, shape in zip(func.params, shapes, strict=True)
        }
        made[kind] = Case(kind, arrays)
        yield made[kind]
    for name in inputs:
        for kind, bad in (("nan", np.nan), ("infinity", np.inf), ("infinity", -np.inf)):
            array = made["random"].arrays[name].copy()
            if array.size:
                array.flat[array.size // 2] = bad
                base = made["random"]
                yield Case(kind, {**base.arrays, name: array}, base, name)


def _shapes(func: tirx.PrimFunc, found: Recurrence) -> list[list[Any]]:
    sizes = tir.VarMap()
    for var in tir.variables(found.time.extent).keys():
        sizes[var] = tirx.IntImm(tir.dtype_of(var), STEPS)
    steps = len(sizes)
    shapes = []
    for param in func.params:
        shape = []
        for extent in tir.shape_of(param):
            for var in tir.variables(extent).keys():
                if var not in sizes:
                    other = _OTHERS[(len(sizes) - steps) % len(_OTHERS)]
                    sizes[var] = tirx.IntImm(tir.dtype_of(var), other)
            shape.append(tir.as_int(tir.simplify(tir.substitute(extent, sizes))))
        shapes.append(shape)
    return shapes


def _values(
    kind: str, shape: list[Any], dtype: str, limit: int | None, rng: np.random.Generator
) -> np.ndarray:
    if not is_float(dtype):
        low, high = (0, limit) if limit is not None else (0, 2) if dtype == "bool" else (-4, 5)
        low = 0 if dtype.startswith("uint") or kind == "zeros" else low
        high = 1 if kind == "zeros" else high
        return rng.integers(low, high, shape).astype(dtype)
    draw = {
        "decaying": lambda: rng.uniform(0.9, 1.0, shape),
        "growing": lambda: rng.uniform(1.0, 1.1, shape),
        "zeros": lambda: np.zeros(shape),
        "denormal": lambda: rng.uniform(-1, 1, shape) * _smallest_normal(dtype),
    }
    return draw.get(kind, lambda: rng.standard_normal(shape))().astype(_storage(dtype))


def _changed(array: np.ndarray, relative: float, rng: np.random.Generator) -> np.ndarray:
    if array.dtype.kind in "iub":
        return array
    wide = array.astype("float64")
    with np.errstate(over="ignore", under="ignore"):
        return (wide * (1 + relative * rng.uniform(-1, 1, array.shape))).astype(array.dtype)


def _storage(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return dtype


def _smallest_normal(dtype: str) -> float:
    return float(np.finfo("float32" if dtype == "bfloat16" else dtype).tiny)


def index_limits(func: tirx.PrimFunc, found: Recurrence) -> tir.VarMap:
    """Extents that integer inputs must stay below, because they index something."""
    limits = tir.VarMap()

    def bound(source: Any, extent: Any) -> None:
        size = tir.as_int(extent)
        if size is not None:
            limits[source] = min(size, limits.get(source, size))

    for load in tir.loads(func.body):
        for index, extent in zip(load.indices, tir.shape_of(load.source), strict=True):
            for inner in tir.loads(index):
                bound(inner.source, extent)
    for algebra in found.algebras:
        inner = algebra.innermost
        if isinstance(inner, Automaton):
            for load in tir.loads(inner.image):
                bound(load.source, tirx.IntImm("int32", inner.states))
    return limits
