"""The loop of a program as it stands, its scan, and when they count as equal."""

from __future__ import annotations

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from tests.support.compiled import compile_cached
from tvm_scan import Recurrence, ScanPlan, parallelize

__all__ = [
    "CPU",
    "PLAIN",
    "TREE",
    "agree",
    "families_of",
    "run_loop",
    "run_scan",
    "without_threads",
]

CPU = Target.from_device("cpu")
#: The loop is the oracle: nothing is moved or fused in it, and it compiles in half the time.
PLAIN = Target({**CPU.export(), "opt-level": 0})
#: More chunks than fit without a remainder: the first, the last and an inner one all differ.
TREE = ScanPlan.of("cpu", "three_phase", chunks=4)


def without_threads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A nest that is bound to threads, as plain loops for the CPU."""

    def on_for(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.THREAD_BINDING:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, on_for)))


def _run(func: tirx.PrimFunc, arrays: list[np.ndarray], target: Target) -> list[np.ndarray]:
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    compile_cached(func, target=target, plainly=True)(*tensors)
    return [tensor.numpy() for tensor in tensors]


def run_loop(func: tirx.PrimFunc, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """All parameters after the sequential loop."""
    return _run(without_threads(func), arrays, PLAIN)


def run_scan(
    func: tirx.PrimFunc, arrays: list[np.ndarray], plan: ScanPlan = TREE
) -> list[np.ndarray]:
    """All parameters after the parallel form."""
    return _run(parallelize(func, CPU, plan), arrays, CPU)


def families_of(found: Recurrence) -> str:
    """Families of the levels in order, reductions with their operator."""
    names = [
        f"reduce {group.algebra.op}" if group.algebra.name == "reduce" else group.algebra.name
        for group in found.groups
    ]
    return ", ".join(names)


def agree(
    got: np.ndarray, want: np.ndarray, *, rounds: bool, growth: float = 1.0, slack: float = 0.0
) -> bool:
    """Whether a scan's output counts as the loop's.

    Parameters
    ----------
    got, want : ndarray
        Output of the scan and of the loop.
    rounds : bool
        False: equal bits (NaN equals NaN). True: 64 units in the last place of the largest
        magnitude, two roundings per step of 29 steps; as many of a half, which the loop rounds
        at every step.
    growth : float
        Factor of that bound.
    slack : float
        Further difference that is allowed.
    """
    if not rounds or want.dtype.kind in "iub":
        return bool(np.array_equal(got, want, equal_nan=want.dtype.kind not in "iub"))
    left, right = got.astype("float64"), want.astype("float64")
    if not (np.isnan(left) == np.isnan(right)).all():
        return False
    scale = max(1.0, float(np.abs(right[np.isfinite(right)]).max(initial=0.0)))
    unit = 2.0**-11 if want.dtype.itemsize == 2 else 2.0**-24
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)
    apart = apart[~((left == right) | np.isnan(right))]
    return bool((apart <= 64 * unit * scale * growth + slack).all())
