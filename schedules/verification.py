"""A scan beside its sequential loop, on inputs that are meant to tell them apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.algebra import Automaton, Segmented
from tvm_scan.algebra.literal import is_float
from tvm_scan.arguments import as_func
from tvm_scan.cuda_math import build
from tvm_scan.errors import RefusalError, ScanError
from tvm_scan.extraction import extract
from tvm_scan.recurrence import Recurrence, Refusal
from tvm_scan.schedules.arguments import Chooser, as_choice, target_for
from tvm_scan.schedules.default import default_plan, host_target
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.primitive import parallelize

__all__ = ["Comparison", "check_verified", "telling_plan", "verify"]

#: Extents of symbolic shapes: lanes, then longer ones, odd so that no tile divides them.
_SIZES = (3, 517, 5, 7)
#: Families whose scan does the loop's own operations on the loop's own values.
_EXACT = ("bitwise affine", "shifted bits", "two states", "finite automaton")
_CASES = ("random", "decaying", "growing", "zeros", "denormal", "nan", "infinity")


@dataclass(frozen=True)
class Comparison:
    """One output on one kind of input.

    Attributes
    ----------
    inputs : str
        ``random`` (normal numbers; small integers), ``decaying`` (0.9 to 1), ``growing`` (1 to
        1.1), ``zeros``, ``denormal``, ``nan`` and ``infinity`` (one in the middle of each input).
    output : str
        Name of the written buffer.
    largest_ulps : float
        Largest difference in units in the last place of the loop's value; infinite where one of
        the two is NaN or infinite alone.
    where : tuple of int
        Index of the largest difference.
    loop, scan : float
        The two values there.
    relative : float
        Largest difference over the largest magnitude of the loop's output.
    bound : float
        Bound of ``relative``: 0 for exact families, else a few roundings per step. NaN where the
        loop itself meets NaN, infinity or denormals, where no bound is claimed.
    """

    inputs: str
    output: str
    largest_ulps: float
    where: tuple[int, ...]
    loop: float
    scan: float
    relative: float
    bound: float

    @property
    def holds(self) -> bool:
        """Whether the difference is within the bound, or none is claimed."""
        return bool(np.isnan(self.bound) or self.relative <= self.bound)


def verify(
    func: tirx.PrimFunc,
    target: Target | str | None = None,
    plan: ScanPlan | str | Chooser | None = None,
    *,
    seed: int = 0,
) -> list[Comparison]:
    """Compile a function as a scan and as its loop, and compare them on adversarial inputs.

    Parameters
    ----------
    func : PrimFunc
        A function with a recurrence. Symbolic extents get small odd values.
    target : tvm.target.Target or str, optional
        For the scan; as in ``parallelize`` if not given.
    plan : ScanPlan, str or callable, optional
        One for all recurrences of the function, or a function that gives each its own;
        ``telling_plan`` if not given.
    seed : int
        Of the random inputs.

    Returns
    -------
    list of Comparison
        One for each output and kind of input.

    Raises
    ------
    RefusalError
        If the function has no recurrence.
    """
    found = extract(as_func(func, "verify"))
    if isinstance(found, Refusal):
        raise RefusalError(found.message(), found)
    choice = as_choice(plan, "verify")
    one = choice if isinstance(choice, ScanPlan) else None
    target = target_for(target, one, "verify")
    name = str((func.attrs or {}).get("global_symbol", "main"))
    named = func.with_attr("global_symbol", name)
    loop = tvm.compile(named, target=host_target())[name]
    scan = build(parallelize(named, target, choice or partial(telling_plan, target)), target)[name]
    written = [str(p.name) for p in func.params if p in tir.buffers_stored(func.body)]
    out: list[Comparison] = []
    for kind in _CASES:
        arrays = _arrays(func, found, kind, np.random.default_rng(seed))
        if arrays is None:
            continue
        results = [
            _run(run, arrays, device)
            for run, device in ((loop, tvm.cpu()), (scan, _device(target)))
        ]
        for output in written:
            want, got = (result[output] for result in results)
            out.append(_compare(kind, output, want, got, found))
    return out


def telling_plan(target: Target, found: Recurrence) -> ScanPlan:
    """The default plan; where that is the loop itself, a tree, which has something to tell."""
    plan = default_plan(target, found)
    if plan.algorithm != "sequential":
        return plan
    return ScanPlan("cpu", "three_phase", chunks=8, lane_block=4)


def check_verified(comparisons: list[Comparison]) -> None:
    """Raise where a comparison does not hold.

    Raises
    ------
    ScanError
        With the inputs, the place and both values.
    """
    for c in comparisons:
        if not c.holds:
            raise ScanError(
                f"verify: expected {c.output}{list(c.where)} = {c.loop} as the loop has it on "
                f"{c.inputs} inputs, got {c.scan} from the scan ({c.largest_ulps:.3g} ulps; "
                f"relative {c.relative:.3g}, bound {c.bound:.3g}); use the sequential plan and "
                "report the function"
            )


def _device(target: Target) -> Any:
    return tvm.cuda(0) if str(target.kind.name) == "cuda" else tvm.cpu(0)


def _run(run: Any, arrays: dict[str, np.ndarray], device: Any) -> dict[str, np.ndarray]:
    tensors = {name: tvm.runtime.tensor(array, device) for name, array in arrays.items()}
    run(*tensors.values())
    device.sync()
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _arrays(
    func: tirx.PrimFunc, found: Recurrence, kind: str, rng: np.random.Generator
) -> dict[str, np.ndarray] | None:
    """An array for every parameter; None where the kind means nothing to its dtypes."""
    limits = index_limits(func, found)
    sizes = tir.VarMap()
    out: dict[str, np.ndarray] = {}
    floats = False
    for param in func.params:
        shape = []
        for extent in tir.shape_of(param):
            for var in tir.variables(extent).keys():
                if var not in sizes:
                    sizes[var] = tirx.IntImm(tir.dtype_of(var), _SIZES[len(sizes) % len(_SIZES)])
            shape.append(tir.as_int(tir.simplify(tir.substitute(extent, sizes))))
        dtype = tir.dtype_of(param)
        floats |= is_float(dtype)
        out[str(param.name)] = _values(kind, shape, dtype, limits.get(param), rng)
    return out if floats or kind in ("random", "zeros") else None


def _values(
    kind: str, shape: list[Any], dtype: str, limit: int | None, rng: np.random.Generator
) -> np.ndarray:
    if not is_float(dtype):
        low, high = (0, limit) if limit is not None else (0, 2) if dtype == "bool" else (-4, 5)
        low = 0 if dtype.startswith("uint") or kind == "zeros" else low
        high = 1 if kind == "zeros" else high
        return rng.integers(low, high, shape).astype(dtype)
    draw: dict[str, Callable[[], np.ndarray]] = {
        "decaying": lambda: rng.uniform(0.9, 1.0, shape),
        "growing": lambda: rng.uniform(1.0, 1.1, shape),
        "zeros": lambda: np.zeros(shape),
        "denormal": lambda: rng.uniform(-1, 1, shape) * np.finfo(_numpy(dtype)).tiny,
    }
    values = draw.get(kind, lambda: rng.standard_normal(shape))().astype(_storage(dtype))
    if kind in ("nan", "infinity") and values.size:
        values.flat[values.size // 2] = np.nan if kind == "nan" else np.inf
    return values


def _storage(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return dtype


def _numpy(dtype: str) -> str:
    return "float32" if dtype == "bfloat16" else dtype


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
        inner = algebra.inner if isinstance(algebra, Segmented) else algebra
        if isinstance(inner, Automaton):
            for load in tir.loads(inner.image):
                bound(load.source, tirx.IntImm("int32", inner.states))
            if inner.flat is not None:
                _, width, rest, _ = inner.flat
                for load in tir.loads(rest):
                    bound(load.source, tirx.IntImm("int32", width))
    return limits


def _compare(
    kind: str, output: str, want: np.ndarray, got: np.ndarray, found: Recurrence
) -> Comparison:
    left, right = want.astype("float64"), got.astype("float64")
    if want.size == 0:
        return Comparison(kind, output, 0.0, (), 0.0, 0.0, 0.0, 0.0)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(same, 0.0, np.abs(left - right))
    difference = np.where(np.isnan(difference), np.inf, difference)
    floats = want.dtype.kind not in "iub"
    spacing = np.ones_like(left)
    if floats:
        info = np.finfo("float32") if want.dtype.itemsize == 2 else np.finfo(want.dtype)
        with np.errstate(invalid="ignore"):
            spacing = np.maximum(np.abs(left) * float(info.eps) / 2, float(info.tiny))
        spacing = np.where(np.isfinite(spacing), spacing, 1.0)
    ulps = difference / spacing
    place = np.unravel_index(int(np.argmax(ulps)), ulps.shape)
    finite = np.abs(left[np.isfinite(left)])
    scale = float(finite.max(initial=0.0)) or 1.0
    return Comparison(
        kind,
        output,
        float(ulps[place]),
        tuple(int(i) for i in place),
        float(left[place]),
        float(right[place]),
        float(difference.max()) / scale,
        _bound(kind, want, found),
    )


def _bound(kind: str, want: np.ndarray, found: Recurrence) -> float:
    if want.dtype.kind in "iub" or all(_is_exact(algebra) for algebra in found.algebras):
        return 0.0
    if kind not in ("random", "decaying", "zeros") or not np.isfinite(want.astype("float64")).all():
        return float("nan")
    length = tir.as_int(found.time.extent) or max(_SIZES)
    half = want.dtype.itemsize == 2
    eps = 2.0**-8 if half else float(np.finfo(want.dtype).eps)
    return 16 * eps * (1 if half else length)


def _is_exact(algebra: Any) -> bool:
    if isinstance(algebra, Segmented):
        return _is_exact(algebra.inner)
    return algebra.name in _EXACT or getattr(algebra, "op", "") in (
        "max",
        "min",
        "and",
        "or",
        "xor",
    )
