"""Inputs on which ``verify`` runs a loop and its scan: they are meant to tell them apart."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Range
from tvm.s_tir import SBlock
from tvm.sym import Analyzer

from tvm_scan import tir
from tvm_scan.algebra import Automaton
from tvm_scan.algebra.literal import is_float
from tvm_scan.delta_rule import DeltaRule, TimeLoop

#: Steps of a symbolic length, and other symbolic extents: odd, so that no tile divides them.
STEPS, _OTHERS = 517, (3, 5, 7)
CASES = ("random", "decaying", "growing", "zeros", "denormal", "nan", "infinity")
#: Of these, those with a number that is not finite.
NON_FINITE = CASES[5:]
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
        """Yield the same arguments, with floats changed at random by a little."""
        rng = np.random.default_rng(seed)
        for _ in range(_CHANGES):
            yield {name: _changed(array, relative, rng) for name, array in self.arrays.items()}


def cases(func: tirx.PrimFunc, recurrence: TimeLoop, seed: int) -> Iterator[Case]:
    """Every kind that means something to the dtypes of a function.

    A value that is not finite is put into the middle of one input at a time: together they would
    hide what each of them does.

    Parameters
    ----------
    func : PrimFunc
        Symbolic extents get small odd values, the steps ``STEPS``.
    recurrence : Recurrence or DeltaRule
        Of it. Vectors of a delta rule are of about unit length, as the loop's own sums grow by the
        square of it at every step.
    seed : int
        Of the random values.
    """
    shapes = shapes_of(func, _sizes(func, recurrence))
    limits = index_limits(func, recurrence)
    vectors = unit_factors(recurrence)
    read = tir.buffers_loaded(func.body)
    floats = [str(p.name) for p in func.params if is_float(tir.dtype_of(p))]
    inputs = [str(p.name) for p in func.params if p in read and str(p.name) in floats]
    by_kind = {}
    for kind in CASES[:5] if floats else ("random", "zeros"):
        rng = np.random.default_rng(seed)
        arrays = {
            str(p.name): _values(
                kind, shape, tir.dtype_of(p), limits.get(p), rng, vectors.get(p, 1.0)
            )
            for p, shape in zip(func.params, shapes, strict=True)
        }
        by_kind[kind] = Case(kind, arrays)
        yield by_kind[kind]
    for name in inputs:
        for kind, bad in (("nan", np.nan), ("infinity", np.inf), ("infinity", -np.inf)):
            array = by_kind["random"].arrays[name].copy()
            if array.size:
                array.flat[array.size // 2] = bad
                base = by_kind["random"]
                yield Case(kind, {**base.arrays, name: array}, base, name)


def _sizes(func: tirx.PrimFunc, recurrence: TimeLoop) -> tir.VarMap:
    return sizes_of(func, [recurrence.time.extent], _OTHERS)


def sizes_of(func: tirx.PrimFunc, lengths: list[Any], others: Sequence[int]) -> tir.VarMap:
    """Return a number for every extent that is symbolic: ``STEPS`` for those of time."""
    sizes = tir.VarMap()
    for var in tir.variables(lengths).keys():
        sizes[var] = tirx.IntImm(tir.dtype_of(var), STEPS)
    steps = len(sizes)
    for param in func.params:
        for extent in tir.shape_of(param):
            for var in tir.variables(extent).keys():
                if var not in sizes:
                    other = others[(len(sizes) - steps) % len(others)]
                    sizes[var] = tirx.IntImm(tir.dtype_of(var), other)
    return sizes


def shapes_of(func: tirx.PrimFunc, sizes: tir.VarMap) -> list[list[Any]]:
    """Return the shapes of the parameters of a function, for numbers in place of its extents."""
    return [[_number(extent, sizes) for extent in tir.shape_of(param)] for param in func.params]


def _number(extent: Any, sizes: tir.VarMap) -> int | None:
    return tir.as_int(tir.simplify(tir.substitute(extent, sizes)))


def _values(
    kind: str,
    shape: list[Any],
    dtype: str,
    limit: int | None,
    rng: np.random.Generator,
    factor: float = 1.0,
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
    values = draw.get(kind, lambda: rng.standard_normal(shape))() * factor
    return values.astype(storage(dtype))


def unit_factors(loop: TimeLoop) -> tir.VarMap:
    """Factors for the inputs that are vectors over the rows of a delta rule's state.

    They are of about unit length then; longer ones multiply the state by a negative number at every
    step.

    Parameters
    ----------
    loop : Recurrence or DeltaRule
        Of a recurrence there are none.
    """
    if not isinstance(loop, DeltaRule):
        return tir.VarMap()
    rule = loop
    exprs = [e for term in rule.terms for e in (term.into, term.source) if e is not None]
    rows = tir.as_int(rule.rows.extent) or 1
    return tir.VarMap(
        (load.source, rows**-0.5)
        for e in exprs
        for load in tir.loads(e)
        if tir.contains_var(list(load.indices), [rule.rows.var])
    )


def _changed(array: np.ndarray, relative: float, rng: np.random.Generator) -> np.ndarray:
    if array.dtype.kind in "iub":
        return array
    wide = array.astype("float64")
    with np.errstate(over="ignore", under="ignore"):
        return (wide * (1 + relative * rng.uniform(-1, 1, array.shape))).astype(array.dtype)


def storage(dtype: str) -> Any:
    """NumPy's dtype of a name."""
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return dtype


def _smallest_normal(dtype: str) -> float:
    return float(np.finfo("float32" if dtype == "bfloat16" else dtype).tiny)


def index_limits(func: tirx.PrimFunc, recurrence: TimeLoop) -> tir.VarMap:
    """Extents that integer inputs must stay below, because they index something.

    Every index stays inside of its array, or the loop itself would end the process.
    """
    limits, sizes = tir.VarMap(), _sizes(func, recurrence)
    ranges = _ranges(func.body, sizes)

    def bound(index: Any, size: int | None) -> None:
        inner = tir.loads(index)
        if size is None or not inner:
            return
        least = _largest(tir.substitute(index, sizes), size, ranges)
        for load in inner:
            limits[load.source] = min(least, limits.get(load.source, least))

    for load in tir.loads(func.body):
        for index, extent in zip(load.indices, tir.shape_of(load.source), strict=True):
            bound(index, _number(extent, sizes))
    for algebra in [] if isinstance(recurrence, DeltaRule) else recurrence.algebras:
        inner = algebra.innermost
        if isinstance(inner, Automaton):
            load = inner.image.value if isinstance(inner.image, tirx.Cast) else inner.image
            limits[load.source] = min(inner.states, limits.get(load.source, inner.states))
            if inner.flat is not None:
                bound(inner.flat[2], inner.flat[1])
    return limits


def _ranges(body: Any, sizes: tir.VarMap) -> list[tuple[Any, Range]]:
    """The ranges of loops and of block axes."""
    ranges = []

    def add(var: Any, start: Any, extent: Any) -> None:
        first, steps = _number(start, sizes), _number(extent, sizes)
        if first is not None and steps is not None:
            kind = tir.dtype_of(var)
            bounds = (tirx.IntImm(kind, first), tirx.IntImm(kind, max(1, steps)))
            ranges.append((var, Range.from_min_extent(*bounds)))

    for block in tir.nodes(body, SBlock):
        for axis in block.iter_vars:
            add(axis.var, axis.dom.min, axis.dom.extent)
    for loop in tir.nodes(body, tirx.For):
        add(loop.loop_var, loop.min, loop.extent)
    return ranges


def _largest(index: Any, size: int, ranges: list[tuple[Any, Range]]) -> int:
    """The most that all loads of an index may stay below, so that it stays below `size`."""
    values: list[tirx.Var] = []

    def value(load: Any) -> Any:
        values.append(tirx.Var(f"value{len(values)}", tir.dtype_of(load)))
        return values[-1]

    written = tir.map_loads(index, value)

    def fits(limit: int) -> bool:
        analyzer = Analyzer()
        for var, over in ranges:
            analyzer.bind(var, over)
        for var in values:
            kind = tir.dtype_of(var)
            bounds = (tirx.IntImm(kind, 0), tirx.IntImm(kind, limit))
            analyzer.bind(var, Range.from_min_extent(*bounds))
        bound = analyzer.const_int_bound(written)
        return int(bound.min_value) >= 0 and int(bound.max_value) < size

    most = bisect.bisect_left(range(1, size + 1), True, key=lambda limit: not fits(limit))
    return most or size  # where nothing is known, what the array has
