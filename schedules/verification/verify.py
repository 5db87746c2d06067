"""A scan beside its sequential loop, on inputs that are meant to tell them apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.arguments import as_func, host_target
from tvm_scan.delta_rule import DeltaRule, TimeLoop
from tvm_scan.errors import RefusalError, ScanError
from tvm_scan.extraction.threads import without_threads
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules.analysis import first_loop
from tvm_scan.schedules.choose.arguments import Chooser, as_choice, target_for
from tvm_scan.schedules.choose.default import decide
from tvm_scan.schedules.choose.plan_of import plan_of
from tvm_scan.schedules.cpu.lanes import Lanes as CpuLanes
from tvm_scan.schedules.cpu.three_phase import ThreePhase
from tvm_scan.schedules.gpu.lanes import Lanes as GpuLanes
from tvm_scan.schedules.gpu.lanes import Sequential
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.nests import schedule_nests
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.verification.bounds import Promise, errors, promise, takes_extrema
from tvm_scan.schedules.verification.inputs import CASES, NON_FINITE, Case, cases
from tvm_scan.schedules.verification.runs import Arrays, Run, runnable, with_tensors

#: Plans that keep the loop's order, with carries of float32.
_ORDERED_CPU: ScanPlan = CpuLanes()
_ORDERED_GPU: ScanPlan = GpuLanes(threads_per_block=32)
#: A tree of chunks.
_TREE: ScanPlan = ThreePhase(chunks=8, lane_block=4)


@dataclass(frozen=True)
class Comparison:
    """One output on one kind of input, where the two differ most.

    Attributes
    ----------
    inputs : str
        ``random`` (normal numbers; small integers), ``decaying`` (0.9 to 1), ``growing`` (1 to
        1.1), ``zeros``, ``denormal``, ``nan`` and ``infinity`` (one in the middle of an input).
    output : str
        Name of the written buffer.
    largest_ulps : float
        The difference there in units in the last place of the loop's value; infinite where one
        of the two is NaN or infinite alone.
    where : tuple of int
        Index of the largest difference.
    loop, scan : float
        The two values there.
    relative : float
        The difference over the size of the terms: the largest magnitude that the loop has had so
        far in this lane, or what small changes of the inputs make of it. Infinite where only one
        of the two is finite.
    bound : float
        Bound of ``relative``: 0 for exact families, else some roundings per step. Of values that
        are not finite the indices are compared, and in exact families the values; in families
        that may leave the loop there (docs/numerics.md), what comes before them.
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
        """Return whether the difference is within the bound."""
        return self.relative <= self.bound


@dataclass(frozen=True)
class _Reference:
    """A loop that the scan is compared with, on some kinds of inputs."""

    run: Run
    kinds: tuple[str, ...]
    rounds_steps: bool = False


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
        A function with a recurrence or a delta rule. Symbolic extents get small odd values.
    target : tvm.target.Target or str, optional
        For the scan; as in ``parallelize`` if not given.
    plan : ScanPlan, str or callable, optional
        One for all recurrences of the function, or a function that gives each its own;
        the plan that is used if not given, or a tree where that is the loop as it is.
    seed : int
        Of the random inputs.

    Returns
    -------
    list of Comparison
        One for each output and kind of input; none of infinities and NaN where the target's
        language says nothing of them (WGSL).

    Raises
    ------
    RefusalError
        If the function has no recurrence.
    ScanError
        If nothing here runs kernels of the target: it says which package brings what does.
    """
    recurrence = first_loop(as_func(func, "verify"))
    if isinstance(recurrence, Refusal):
        raise RefusalError(recurrence.message(), recurrence)
    choice = as_choice(plan, "verify")
    same_plan = choice if isinstance(choice, ScanPlan) else None
    target = target_for(target, same_plan, "verify")
    name = str((func.attrs or {}).get("global_symbol", "main"))
    named = func.with_attr("global_symbol", name)
    scan = runnable(
        schedule_nests(named, target, choice or partial(telling_plan, target=target)), name, target
    )
    written = [p for p in func.params if p in tir.buffers_stored(func.body)]
    out: dict[tuple[str, str], Comparison] = {}
    chunks, promised_all = isinstance(recurrence, DeltaRule), device_of(target).non_finite
    for reference in _references(named, name, target, in_chunks=chunks):
        promises = {
            str(p.name): promise(recurrence, p, rounds_steps=reference.rounds_steps)
            for p in written
        }
        bound = max(promised.bound for promised in promises.values())
        moved: dict[str, Arrays] = {}
        for case in cases(func, recurrence, seed):
            if case.kind not in reference.kinds or (case.kind in NON_FINITE and not promised_all):
                continue
            base = case.base or case
            if base.kind not in moved:
                moved[base.kind] = _moved(reference, base, bound, seed)
            want, got = reference.run(case.arrays), scan(case.arrays)
            touched = _touched(reference, case, want, promises)
            for output, promised in promises.items():
                key = (case.kind, output)
                terms = moved[base.kind][output]
                comparison = _compare(
                    *key, want[output], got[output], terms, promised, touched.get(output)
                )
                out[key] = max(out.get(key, comparison), comparison, key=_severity)
    return list(out.values())


def telling_plan(recurrence: TimeLoop, target: Target) -> ScanPlan:
    """The plan that is used; instead of a loop on a CPU a tree, which has errors to tell."""
    plan, is_gpu = plan_of(recurrence, target), device_of(target).is_gpu
    if is_gpu or not plan.keeps_loop:
        return plan
    if isinstance(recurrence, _TREE.takes):
        return _TREE
    others = (candidate.plan for candidate in decide(target, recurrence).others)
    return next((other for other in others if not other.keeps_loop), plan)


def check_verified(comparisons: list[Comparison]) -> None:
    """Raise where a comparison does not hold.

    Raises
    ------
    ScanError
        With the inputs, the index and both values.
    """
    for c in comparisons:
        if not c.holds:
            raise ScanError(
                f"verify: expected {c.output}{list(c.where)} = {c.loop} as the loop has it on "
                f"{c.inputs} inputs, got {c.scan} from the scan ({c.largest_ulps:.3g} ulps; "
                f"relative {c.relative:.3g}, bound {c.bound:.3g}); use the sequential plan and "
                "report the function"
            )


def _references(
    named: tirx.PrimFunc, name: str, target: Target, *, in_chunks: bool
) -> list[_Reference]:
    """The loop on this machine; for some kinds of inputs one that does as the scan may.

    A device's maximum of a number and NaN is its own, and a loop of halves rounds its carry at
    every step, which a scan does not: there the plan that keeps the loop's order is the measure.
    """
    host = host_target()
    # What is bound to threads by hand runs on a CPU, too.
    serial = named.with_body(without_threads(named.body))
    loop = with_tensors(tvm.compile(serial, target=host)[name], tvm.cpu())
    halves = any(tir.is_half(tir.dtype_of(p)) for p in named.params)
    extrema = device_of(target).is_gpu and takes_extrema(named)
    if in_chunks:
        stored = [p for p in named.params if p in tir.buffers_stored(named.body)]
        rounds = any(tir.is_half(tir.dtype_of(p)) for p in stored)
        # A maximum of NaN and a number hides which of the two has left the finite numbers.
        kinds = ("random", "zeros") if rounds else CASES[:5] if takes_extrema(named) else CASES
        return [_Reference(loop, kinds, rounds)]
    if halves:
        plan = _ORDERED_GPU if extrema else _ORDERED_CPU
        wide = _Reference(_built(named, name, target if extrema else host, plan), CASES)
        return [_Reference(loop, ("random", "zeros"), True), wide]
    if extrema:
        plan = Sequential(threads_per_block=32)
        with_plan = _Reference(_built(named, name, target, plan), ("nan", "infinity"))
        return [_Reference(loop, CASES[:5]), with_plan]
    return [_Reference(loop, CASES)]


def _built(named: tirx.PrimFunc, name: str, target: Target, plan: ScanPlan) -> Run:
    return runnable(schedule_nests(named, target, plan), name, target)


def _moved(reference: _Reference, case: Case, bound: float, seed: int) -> Arrays:
    """Changes of the loop's results as the inputs change by ``bound``, divided by it."""
    want = reference.run(case.arrays)
    out = {name: np.zeros(array.shape) for name, array in want.items()}
    for arrays in case.changed(bound, seed) if bound else ():
        got = reference.run(arrays)
        for name, array in got.items():
            with np.errstate(invalid="ignore", over="ignore"):
                change = np.abs(array.astype("float64") - want[name].astype("float64")) / bound
            np.maximum(out[name], np.where(np.isfinite(change), change, 0.0), out=out[name])
    return out


def _touched(
    reference: _Reference, case: Case, want: Arrays, promises: dict[str, Promise]
) -> Arrays:
    """Masks of where an infinite gate that counts as the largest number changes the results."""
    gates = set().union(*(promised.gates for promised in promises.values()))
    if case.base is None or case.kind != "infinity" or case.spoiled not in gates:
        return {}
    plain = reference.run(case.base.arrays)
    out = {n: want[n] != plain[n] for n in promises}
    somewhere = any(mask.any() for mask in out.values())
    # Of an output without time it is not known which of the steps it shows.
    return {n: out[n] if promises[n].time is not None else out[n] | somewhere for n in out}


def _severity(comparison: Comparison) -> float:
    """Nearness of a comparison to its bound; infinite where it does not hold at all."""
    return comparison.relative / comparison.bound if comparison.bound else comparison.relative


def _compare(
    kind: str,
    output: str,
    want: np.ndarray,
    got: np.ndarray,
    moved: np.ndarray,
    promised: Promise,
    touched: np.ndarray | None,
) -> Comparison:
    if want.size == 0:
        return Comparison(kind, output, 0.0, (), 0.0, 0.0, 0.0, promised.bound)
    left, right = want.astype("float64"), got.astype("float64")
    relative = errors(left, right, moved, promised, touched)
    index = np.unravel_index(int(np.argmax(relative)), relative.shape)
    return Comparison(
        kind,
        output,
        _ulps(left[index], right[index], want.dtype),
        tuple(int(i) for i in index),
        float(left[index]),
        float(right[index]),
        float(relative[index]),
        promised.bound,
    )


def _ulps(want: float, got: float, dtype: np.dtype) -> float:
    if want == got or (np.isnan(want) and np.isnan(got)):
        return 0.0
    if not (np.isfinite(want) and np.isfinite(got)):
        return float("inf")
    if dtype.kind in "iub":
        return abs(want - got)
    info = np.finfo("float32") if dtype.itemsize == 2 else np.finfo(dtype)
    spacing = max(abs(want) * float(info.eps) / 2, float(info.smallest_subnormal))
    return abs(want - got) / spacing
