"""The laws of a recurrence's own algebras, tried on numbers by the compiler that runs the scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.algebra import Algebra
from tvm_scan.algebra.base import Element
from tvm_scan.algebra.literal import is_integer
from tvm_scan.recurrence import Group, Recurrence
from tvm_scan.schedules.common.ir import local, loop

_SAMPLES = 64


@dataclass(frozen=True)
class LawCheck:
    """One law on random elements.

    Attributes
    ----------
    law : str
        The law as text.
    samples : int
        On how many triples of steps it was tried.
    largest_error : float
        Largest difference of the two sides over the largest magnitude of either; exactly 0 for
        integers, some roundings for floats.
    """

    law: str
    samples: int
    largest_error: float


def check_laws(recurrence: Recurrence, seed: int = 0) -> list[LawCheck]:
    """Check action, associativity and identity of every group on random steps.

    The elements are lifted from random inputs, by the algebra's own expressions, compiled.

    Parameters
    ----------
    recurrence : Recurrence
        Whose algebras.
    seed : int
        Of the random inputs.

    Returns
    -------
    list of LawCheck
        Three per group, in order.
    """
    rng = np.random.default_rng(seed)
    return [check for group in recurrence.groups for check in _check(recurrence, group, rng)]


def _check(recurrence: Recurrence, group: Group, rng: np.random.Generator) -> list[LawCheck]:
    algebra = group.algebra
    code = _Samples()
    f, g, k = (code.keep(_lifted(algebra, n, code)) for n in range(3))
    h = tuple(
        code.sample(f"h{i}", recurrence.carries[c].dtype) for i, c in enumerate(group.carries)
    )

    def apply(element: Element, carries: Element) -> Element:
        return code.keep(algebra.apply(element, carries))

    def combine(earlier: Element, later: Element) -> Element:
        return code.keep(algebra.combine(earlier, later))

    unit = code.keep(algebra.identity())
    fg = combine(f, g)
    laws = {
        "apply(combine(f, g), h) = apply(g, apply(f, h))": (apply(fg, h), apply(g, apply(f, h))),
        "combine(combine(f, g), k) = combine(f, combine(g, k))": (
            apply(combine(fg, k), h),
            apply(combine(f, combine(g, k)), h),
        ),
        "combine(identity, f) = f = combine(f, identity)": (
            apply(combine(unit, f), h),
            apply(combine(f, unit), h),
        ),
    }
    code.run(algebra.sample_range, rng)
    return [
        LawCheck(f"{algebra.name}: {law}", _SAMPLES, _difference(code.read(left), code.read(right)))
        for law, (left, right) in laws.items()
    ]


class _Samples:
    """A function over arrays of samples, written value by value; every value is kept."""

    def __init__(self) -> None:
        self.inputs: list[Var] = []
        self.computed: list[Var] = []
        self.stores: list[Any] = []
        self.values = tir.VarMap()

    def sample(self, name: str, dtype: str) -> Any:
        """One more random input, read at the sample's index."""
        self.inputs.append(tirx.decl_buffer([_SAMPLES], dtype, name))
        return tirx.BufferLoad(self.inputs[-1], [_INDEX])

    def keep(self, parts: Element) -> Element:
        """Compute values and keep them, so that expressions stay small."""
        out = []
        for part in parts:
            buffer = local(f"kept{len(self.computed)}", [_SAMPLES], tir.dtype_of(part), "global")
            self.computed.append(buffer)
            self.stores.append((buffer, part))
            out.append(tirx.BufferLoad(buffer, [_INDEX]))
        return tuple(out)

    def run(self, bounds: tuple[int, int], rng: np.random.Generator) -> None:
        """Compile and run on random inputs.

        All values of a dtype are rows of one array: each parameter of a function brings checks,
        which of a hundred take longer to compile than what is computed.
        """
        rows: dict[str, list[Var]] = {}
        for var in (*self.inputs, *self.computed):
            rows.setdefault(tir.dtype_of(var), []).append(var)
        tables = {
            dtype: tirx.decl_buffer([len(members), _SAMPLES], dtype, f"all_{dtype}")
            for dtype, members in rows.items()
        }
        samples = tir.VarMap(
            (var, (tables[dtype], row))
            for dtype, members in rows.items()
            for row, var in enumerate(members)
        )

        def in_table(load: Any) -> Any:
            table, row = samples[load.source]
            return tirx.BufferLoad(table, [row, *load.indices])

        def body(i: Var) -> Any:
            at = tir.VarMap([(_INDEX, i)])
            stores = []
            for var, value in self.stores:
                table, row = samples[var]
                value = tir.substitute(tir.map_loads(value, in_table), at)
                stores.append(tirx.BufferStore(table, value, [row, i]))
            return tir.seq(stores)

        params = list(tables.values())
        func = tirx.PrimFunc(params, loop("i", _SAMPLES, body)).with_attr("global_symbol", "laws")
        arrays = {
            dtype: np.zeros((len(members), _SAMPLES), dtype) for dtype, members in rows.items()
        }
        for var in self.inputs:
            dtype = tir.dtype_of(var)
            arrays[dtype][samples[var][1]] = _random(rng, dtype, bounds)
        tensors = {dtype: tvm.runtime.tensor(array) for dtype, array in arrays.items()}
        tvm.compile(func, target="llvm")["laws"](*tensors.values())
        arrays_by_dtype = {dtype: tensor.numpy() for dtype, tensor in tensors.items()}
        for dtype, members in rows.items():
            for row, var in enumerate(members):
                self.values[var] = arrays_by_dtype[dtype][row]

    def read(self, parts: Element) -> list[np.ndarray]:
        """Computed values of the parts of an element."""
        return [self.values[part.source] for part in parts]


_INDEX = tirx.Var("i", "int32")


def _lifted(algebra: Algebra, number: int, code: _Samples) -> Element:
    """An element of one step, whose inputs are samples: each load and each free variable."""
    loads: list[tuple[Any, Any]] = []

    def on_load(load: Any) -> Any:
        for seen, sample in loads:
            if tir.structurally_equal(seen, load):
                return sample
        name = f"{load.source.name}{number}_{len(loads)}"
        loads.append((load, code.sample(name, tir.dtype_of(load))))
        return loads[-1][1]

    parts = [tir.map_loads(part, on_load) for part in algebra.lift()]
    table = tir.VarMap([(_INDEX, _INDEX)])
    for part in parts:
        for var in tir.variables(part).keys():
            if var not in table and not any(var.same_as(buffer) for buffer in code.inputs):
                table[var] = code.sample(f"{var.name}{number}_v", tir.dtype_of(var))
    return tuple(tir.substitute(part, table) for part in parts)


def _random(rng: np.random.Generator, dtype: str, bounds: tuple[int, int]) -> np.ndarray:
    if dtype == "bool":
        return rng.integers(0, 2, _SAMPLES).astype(bool)
    if is_integer(dtype):
        low = 0 if dtype.startswith("u") else bounds[0]
        return rng.integers(low, bounds[1], _SAMPLES).astype(dtype)
    return rng.uniform(0.25, 2.0, _SAMPLES).astype(dtype)


def _difference(left: list[np.ndarray], right: list[np.ndarray]) -> float:
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        a, b = a.astype("float64"), b.astype("float64")
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        scale = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.finfo("float32").tiny)
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.abs(a - b) / scale)
        worst = max(worst, float(np.nanmax(np.where(np.isnan(error), np.inf, error), initial=0.0)))
    return worst
