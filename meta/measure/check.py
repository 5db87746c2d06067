"""A candidate beside its sequential loop: no time counts before the results agree.

The inputs are exact where the recurrence allows it: gates of -1 and 1 and small integers, on which
every association gives the same bits, and on which a wrong carry stays at full size instead of
decaying below the rounding error.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call

from tvm_scan import tir
from tvm_scan.algebra import Affine, Reduce
from tvm_scan.algebra.literal import is_float
from tvm_scan.arguments import host_target
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.errors import ScanError
from tvm_scan.extraction.threads import without_threads
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.verification.bounds import rounds
from tvm_scan.schedules.verification.inputs import index_limits, storage, unit_factors

#: First words of the message about a wrong candidate, also through a worker's error text.
WRONG = "tvm_scan found a wrong candidate"
#: Magnitude below which float32 holds every integer, with room for one more step.
_EXACT = float(1 << 22)
_ROUNDING = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


@dataclass(frozen=True)
class Case:
    """Arguments of a function, and what its loop makes of them.

    Attributes
    ----------
    name : str
        Kind of the inputs.
    inputs : list of ndarray
        One for each parameter, in order; those that are written, too.
    expected : list of (int, ndarray)
        Position and value of every parameter that the loop writes.
    bound : float
        Largest difference, relative to the largest value; 0 asks for the same values.
    """

    name: str
    inputs: list[np.ndarray]
    expected: list[tuple[int, np.ndarray]]
    bound: float


def make_cases(
    func: tirx.PrimFunc, *, seed: int = 0, inputs: Mapping[str, np.ndarray] | None = None
) -> list[Case]:
    """Run the sequential loop on this machine's CPU, on exact inputs where there are any.

    Parameters
    ----------
    func : PrimFunc
        With constant extents.
    seed : int
        Of the random values.
    inputs : mapping of str to ndarray, optional
        Values by parameter name, in place of invented ones.

    Returns
    -------
    list of Case
        The first one serves for timing, too.

    Raises
    ------
    ScanError
        If an extent is symbolic, or no inputs were found on which the loop stays finite.
    """
    shapes = [[tir.as_int(e) for e in tir.shape_of(param)] for param in func.params]
    if any(n is None for shape in shapes for n in shape):
        raise ScanError(
            "tune: expected constant extents, got symbolic ones; give the function its shapes"
        )
    recurrences = analyse(func).accepted
    # What is bound to threads by hand runs on a CPU, too.
    named = func.with_body(without_threads(func.body)).with_attr("global_symbol", "main")
    try:
        loop = tvm.compile(named, target=host_target())["main"]
    except tvm.error.InternalError as error:
        raise ScanError(
            "tune: expected a loop that a CPU can run beside its candidates, got one that does not "
            "compile there (does it wait for other threads?); give the loop without its schedule"
        ) from error
    written = tir.buffers_stored(func.body)
    inputs_of_caller = dict(inputs or {})
    out: list[Case] = []
    kinds = ["given"] if inputs_of_caller else ["exact", "decaying", "random", "negative", "small"]
    for kind in kinds:
        if kind == "exact" and not all(_is_exact(r) for r in recurrences):
            continue
        rng = np.random.default_rng(seed)
        arrays = _arrays(func, recurrences, shapes, kind, rng, inputs_of_caller)
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        loop(*tensors)
        results = [(i, tensors[i].numpy()) for i, p in enumerate(func.params) if p in written]
        if kind == "exact" and all(_is_small(value) for _, value in results):
            return [Case(kind, arrays, results, 0.0)]
        if kind != "exact" and (inputs_of_caller or all(_tells(value) for _, value in results)):
            out.append(Case(kind, arrays, results, _bound(recurrences, results)))
        if len(out) == 2:
            break
    if not out:
        raise ScanError(
            "tune: expected inputs on which the loop stays finite, found none; pass some as inputs"
        )
    return out


def compare(case: Case, got: list[np.ndarray]) -> str | None:
    """Say how results differ from the loop's, or None where they agree.

    Parameters
    ----------
    case : Case
        The inputs and the loop's results.
    got : list of ndarray
        One for each of ``case.expected``.
    """
    for (position, want), array in zip(case.expected, got, strict=True):
        left, right = want.astype("float64"), array.astype("float64")
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore"):
            off = np.where(same, 0.0, np.abs(left - right))
        off = np.where(np.isnan(off), np.inf, off)
        scale = float(np.abs(left[np.isfinite(left)]).max(initial=0.0)) or 1.0
        if off.size and float(off.max()) > case.bound * scale:
            where = tuple(int(i) for i in np.unravel_index(int(np.argmax(off)), off.shape))
            return (
                f"{WRONG}: expected {want[where]} at {list(where)} of parameter {position} as the "
                f"loop has it on {case.name} inputs, got {array[where]} "
                f"(allowed {case.bound * scale:.3g})"
            )
    return None


def first_difference(cases: list[Case], run: Callable[..., Any], device: Any) -> str | None:
    """Run a function on every case, and say how it differs from the loop; None where it does not.

    Parameters
    ----------
    cases : list of Case
        Inputs, and the loop's results.
    run : callable
        Takes the tensors of all parameters.
    device : Device
        Where it runs.
    """
    for case in cases:
        tensors = [tvm.runtime.tensor(array, device) for array in case.inputs]
        run(*tensors)
        device.sync()
        difference = compare(case, [tensors[position].numpy() for position, _ in case.expected])
        if difference is not None:
            return difference
    return None


def save_cases(cases: list[Case], path: Path) -> None:
    """Write cases for the worker processes; into a folder that is the caller's alone."""
    path.write_bytes(pickle.dumps(cases, protocol=pickle.HIGHEST_PROTOCOL))


def load_cases(path: Path) -> list[Case]:
    """Read what ``save_cases`` of this user wrote."""
    cases: list[Case] = pickle.loads(path.read_bytes())
    return cases


def _arrays(
    func: tirx.PrimFunc,
    recurrences: Sequence[TimeLoop],
    shapes: list[Any],
    kind: str,
    rng: np.random.Generator,
    inputs_of_caller: Mapping[str, np.ndarray],
) -> list[np.ndarray]:
    limits, gates, factors = tir.VarMap(), tir.VarMap(), tir.VarMap()
    for recurrence in recurrences:
        for buffer, factor in unit_factors(recurrence).items():
            factors[buffer] = factor
        for buffer, limit in index_limits(func, recurrence).items():
            limits[buffer] = min(limit, limits.get(buffer, limit))
        for buffer in _gates(recurrence):
            gates[buffer] = True
    out = []
    for param, shape in zip(func.params, shapes, strict=True):
        name, dtype = str(param.name), tir.dtype_of(param)
        if name in inputs_of_caller:
            out.append(np.array(inputs_of_caller[name], copy=True))
        elif not is_float(dtype):
            low, high = (0, limits[param]) if param in limits else (0, 3)
            high = 2 if dtype == "bool" else high
            out.append(rng.integers(low, high, shape).astype(dtype))
        elif kind == "exact":
            values = rng.choice([-1, 1], shape) if param in gates else rng.integers(-3, 4, shape)
            out.append(values.astype(storage(dtype)))
        else:
            values = _floats(kind, shape, rng) * factors.get(param, 1.0)
            out.append(values.astype(storage(dtype)))
    return out


def _floats(kind: str, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    if kind == "decaying":
        return rng.uniform(0.9, 1.0, shape)
    if kind == "negative":
        return rng.uniform(-1.0, -0.1, shape)
    return rng.standard_normal(shape) * (0.1 if kind == "small" else 1.0)


def _gates(recurrence: TimeLoop) -> list[Any]:
    """Inputs that multiply the carry."""
    gates = []
    for algebra in recurrence.algebras:
        factor = algebra.a if isinstance(algebra, Affine) else None
        if isinstance(algebra, Reduce) and algebra.op == "mul":
            factor = algebra.lift()
        for expr in factor if isinstance(factor, tuple | list) else [factor]:
            if expr is not None:
                gates += [load.source for load in tir.loads(expr)]
    return gates


def _is_exact(recurrence: TimeLoop) -> bool:
    """Return whether small integers stay integers in every step, in every order."""
    if isinstance(recurrence, DeltaRule):  # whose cells grow with every step
        return False
    if not all(isinstance(algebra, Reduce | Affine) for algebra in recurrence.algebras):
        return False
    every = [recurrence.body, recurrence.start, recurrence.finish, recurrence.prologue]
    parts = [part for part in every if part is not None]
    numbers = [float(constant.value) for constant in tir.nodes(parts, tirx.FloatImm)]
    return not (
        any(map(rounds, tir.nodes(parts, Call)))
        or any(is_float(tir.dtype_of(quotient)) for quotient in tir.nodes(parts, *_ROUNDING))
        or any(np.isfinite(number) and not number.is_integer() for number in numbers)
    )


def _is_small(value: np.ndarray) -> bool:
    wide = value.astype("float64")
    limit = 2048.0 if value.dtype.itemsize == 2 else _EXACT
    return bool(np.isfinite(wide).all() and (np.abs(wide) < limit).all())


def _tells(value: np.ndarray) -> bool:
    """Return whether every value is finite, and not all of them are alike."""
    wide = value.astype("float64")
    return bool(np.isfinite(wide).all() and (wide.size < 2 or wide.min() != wide.max()))


def _bound(recurrences: Sequence[TimeLoop], results: list[tuple[int, np.ndarray]]) -> float:
    """Rounding errors of n steps grow as the root of n, with a factor of 16 to spare."""
    floats = [value for _, value in results if value.dtype.kind not in "iub"]
    if not floats:
        return 0.0
    length = max(((tir.as_int(r.time.extent) or 1) * r.roundings for r in recurrences), default=1)
    half = any(value.dtype.itemsize == 2 for value in floats)
    eps = max(2.0**-8 if half else float(np.finfo(value.dtype).eps) for value in floats)
    return 16 * eps * (1.0 if half else float(np.sqrt(max(1, length))))
