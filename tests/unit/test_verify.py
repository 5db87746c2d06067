"""``verify`` tells a right scan from a wrong one, and the laws a right algebra from a wrong one."""

import dataclasses
import json

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T
from typer.testing import CliRunner

from tests.programs.accepted_programs import PROGRAMS as ACCEPTED
from tests.programs.family_programs import PROGRAMS
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import ScanPlan, extract, library, parallelize, verify
from tvm_scan.algebra import Affine
from tvm_scan.cli.app import app
from tvm_scan.errors import RefusalError, ScanError
from tvm_scan.schedules.verification import inputs as verification_inputs
from tvm_scan.schedules.verification import runs
from tvm_scan.schedules.verification import verify as verification
from tvm_scan.schedules.verification.bounds import promise
from tvm_scan.schedules.verification.inputs import STEPS
from tvm_scan.schedules.verification.laws import check_laws

CHUNKS = ScanPlan.parse("cpu/three_phase(chunks=8, lane_block=4)")


HOLD = {
    **{name: entry[0] for name, entry in PROGRAMS.items()},
    # No gate; threads, which the loop on this machine does without; a state that is read late.
    **{name: ACCEPTED[name][0] for name in ("delay", "thread_bound", "half_carries")},
    "cumsum": library.cumsum(3, 500, reverse=True, exclusive=True),
    "selective scan": library.selective_scan(1, 3, 100, 4, final_state=True),
}


@pytest.fixture(autouse=True)
def libraries(monkeypatch, request):
    """Let what `verify` compiles for CPUs be kept on disk; its command compiles for itself."""
    build = runs.build

    def kept(func, target):
        if target.kind.name != "llvm":
            return build(func, target)
        return compile_cached(func, target, plainly=True)

    if request.function is not test_command:
        monkeypatch.setattr(runs, "build", kept)


@pytest.mark.parametrize("name", HOLD)
def test_families_hold(name):
    comparisons = verify(HOLD[name], plan=CHUNKS)
    assert all(c.holds for c in comparisons), [c for c in comparisons if not c.holds]
    assert {c.inputs for c in comparisons} >= {"random", "zeros"}
    assert all(c.bound == c.bound for c in comparisons), "a bound that nothing can be above"


@pytest.mark.parametrize(
    ("func", "output", "walk"),
    [
        (library.linear_recurrence(3, 50), "H", (1, False)),
        (library.linear_recurrence(3, 50, layout="ld", reverse=True), "H", (0, True)),
        (library.selective_scan(1, 3, 20, 4), "out", (2, False)),
        (library.linear_recurrence(3, 50, final_state=True), "HN", (None, False)),
        (library.cumsum(3, 50, exclusive=True), "Y", (1, False)),
        (ACCEPTED["strided_time"][0], "H", (1, False)),
    ],
)
def test_the_steps_of_an_output_are_known(func, output, walk):
    (param,) = (p for p in func.params if str(p.name) == output)
    promised = promise(extract(func), param)
    assert (promised.time, promised.reverse) == walk


def lagging(lag, step, dtype="float32"):
    """``H[t + lag] = step(H[t], A[t], X[t])``."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((3, 50), dtype),
        X: T.Buffer((3, 50), dtype),
        table: T.Buffer((5, 3), "int32"),
        H: T.Buffer((3, 50 + lag), dtype),
    ):
        for b, t in T.grid(3, 50):
            H[b, t + lag] = step(H[b, t], A[b, t], X[b, t], table)

    return func


LAGGING = {
    "maximum": (lambda h, a, x, table: T.max(h, x), {"bound": 0.0}),
    "clamp": (lambda h, a, x, table: T.max(h + a, x), {"finite_alike": False}),
    "bounded affine": (
        lambda h, a, x, table: T.min(T.max(a * h + x, T.float32(-1)), T.float32(1)),
        {"gates": frozenset("A")},
    ),
    "affine": (lambda h, a, x, table: a * h + x, {"finite_alike": True, "gates": frozenset()}),
    "reset of a maximum": (
        lambda h, a, x, table: T.if_then_else(a > T.float32(0), x, T.max(h, x)),
        {"bound": 0.0},
    ),
}


@pytest.mark.parametrize("name", LAGGING)
def test_a_lag_promises_what_its_family_does(name):
    step, expected = LAGGING[name]
    promises = []
    for lag in (1, 2, 3):
        func = lagging(lag, step)
        promises.append(promise(extract(func), func.params[-1]))
    assert promises[1:] == promises[:1] * 2
    assert {key: getattr(promises[0], key) for key in expected} == expected


def test_inputs_of_a_table_that_lags_stay_in_it():
    """Reading past it would be a fault of ours, not of the scan."""
    for lag in (1, 2, 3):
        func = lagging(lag, lambda h, a, x, table: table[h, x], "int32")
        limits = verification_inputs.index_limits(func, extract(func))
        assert [limits.get(p) for p in func.params] == [None, 3, 5, 5], "else it would crash"
        assert all(c.holds for c in verify(func, plan=CHUNKS))


@T.prim_func(s_tir=True)
def flat_table(
    X: T.Buffer((2, 37), "int32"), TB: T.Buffer((12,), "int32"), H: T.Buffer((2, 37), "int32")
):
    for b, t in T.grid(2, 37):
        H[b, t] = TB[T.if_then_else(t > 0, H[b, t - 1], 0) * 2 + X[b, t]]


@T.prim_func(s_tir=True)
def gathered(x: T.handle, w: T.handle, h: T.handle):
    m, n, k = T.int64(), T.int64(), T.int64()
    X = T.match_buffer(x, (m, n), "int32")
    W = T.match_buffer(w, (m, k), "float32")
    H = T.match_buffer(h, (m, n), "float32")
    for b, t in T.grid(m, n):
        H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + W[b, X[b, t]]


@T.prim_func(s_tir=True)
def gathered_in_rows(
    X: T.Buffer((3, 40), "int32"), W: T.Buffer((24,), "float32"), H: T.Buffer((3, 40), "float32")
):
    for b, t in T.grid(3, 40):
        H[b, t] = T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + W[b * 4 + X[b, t] * 2 + t % 2]


@pytest.mark.parametrize(
    ("func", "most"), [(flat_table, (2, 6)), (gathered, (5,)), (gathered_in_rows, (8,))]
)
def test_inputs_that_index_stay_inside(func, most):
    """Of a flat array, of one whose extent is symbolic, and with the loops beside them."""
    limits = verification_inputs.index_limits(func, extract(func))
    assert tuple(limits.get(p) for p in func.params)[: len(most)] == most, "else it would crash"
    assert all(c.holds for c in verify(func, plan=CHUNKS))


@pytest.mark.parametrize("name", ["running_argmax", "bounded_sum", "running_logsumexp"])
def test_a_device_is_held_to_its_own_maxima(name):
    """Which ignore NaN: the loop on this machine would not."""
    plan = ScanPlan.of("cuda", "three_phase", threads_per_block=32, items_per_thread=1)
    comparisons = verify(PROGRAMS[name][0], CUDA_TARGET, plan)
    assert all(c.holds for c in comparisons), [c for c in comparisons if not c.holds]


def test_symbolic_steps_are_many():
    """Whichever extent they are: three of them would tell nothing."""
    for func in (library.linear_recurrence(None, None), library.cumsum(None, None, axis=0)):
        assert all(c.holds for c in verify(func, plan=CHUNKS))
        found = extract(func)
        for case in verification_inputs.cases(func, found, 0):
            assert {STEPS, 3} == {n for array in case.arrays.values() for n in array.shape}


def spoiled(monkeypatch, change):
    """Let the scans that ``verify`` builds be changed: ``change(inputs, output)`` in place."""

    builds = []

    def built(func, target):
        name = str(func.attrs["global_symbol"])
        right = compile_cached(func, target)[name]
        builds.append(name)
        if len(builds) > 1:  # what the scan is compared with
            return {name: right}

        def wrong(*tensors):
            right(*tensors)
            *inputs, output = (tensor.numpy() for tensor in tensors)
            with np.errstate(all="ignore"):
                changed = output.copy()
                change(inputs, changed)
            tensors[-1].copyfrom(changed)

        return {name: wrong}

    monkeypatch.setattr(runs, "build", built)


def early(h):
    """Steps that are walked first, whose values are small where they grow."""
    return h[:, :60]


def off(part, by=1.001):
    part *= part.dtype.type(by)


def special(inputs, test):
    return any(test(array).any() for array in inputs)


def is_infinite(array):
    return np.isinf(array)


#: Kind of inputs, and scans that are wrong on them alone.
WRONG = {
    "negative, one cell": (
        "random",
        lambda a, h: off(h[1, 7:8], 1.02) if a[0].min() < -1 else None,
    ),
    "growing, early": ("growing", lambda a, h: off(early(h)) if a[0].min() >= 1 else None),
    "growing, late": ("growing", lambda a, h: off(h[:, 400:]) if a[0].min() >= 1 else None),
    "decaying": ("decaying", lambda a, h: off(early(h)) if 0.9 <= a[0].min() < 1 else None),
    "zeros": ("zeros", lambda a, h: h.fill(1e-20) if not a[1].any() else None),
    "denormals flushed": (
        "denormal",
        lambda a, h: h.fill(0) if 0 < np.abs(a[1]).max() < 1e-37 else None,
    ),
    "nan becomes a number": (
        "nan",
        lambda a, h: np.copyto(h, np.nan_to_num(h)) if special(a, np.isnan) else None,
    ),
    "nan ends with its chunk": (
        "nan",
        lambda a, h: h[:, 490:].fill(0) if special(a, np.isnan) else None,
    ),
    "nan a step early": (
        "nan",
        lambda a, h: np.copyto(h, np.roll(h, -1, 1), where=np.isnan(np.roll(h, -1, 1))),
    ),
    "nan in another lane": (
        "nan",
        lambda a, h: h[0, 400:].fill(np.nan) if special(a, np.isnan) else None,
    ),
    "wrong before the nan": (
        "nan",
        lambda a, h: off(early(h)) if special(a, np.isnan) else None,
    ),
    "infinity saturates": (
        "infinity",
        lambda a, h: np.copyto(h, np.nan_to_num(h)) if special(a, is_infinite) else None,
    ),
    "infinity a step early": (
        "infinity",
        lambda a, h: (
            np.copyto(h, np.roll(h, -1, 1), where=np.isinf(np.roll(h, -1, 1)))
            if special(a, is_infinite)
            else None
        ),
    ),
    "wrong before the infinity": (
        "infinity",
        lambda a, h: off(early(h)) if special(a, is_infinite) else None,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_scan_that_is_wrong_on_one_kind_of_inputs(name, monkeypatch):
    kind, change = WRONG[name]
    func = library.linear_recurrence(3, 500)
    spoiled(monkeypatch, change)
    wrong = [c for c in verify(func, plan=CHUNKS) if not c.holds]
    # One value is not finite in the last two kinds; all others are random ones.
    kinds = ["random", "nan", "infinity"] if kind == "random" else [kind]
    assert [c.inputs for c in wrong] == kinds, wrong
    assert wrong[0].relative > wrong[0].bound
    with pytest.raises(ScanError, match=rf"on {kind} inputs, got"):
        verification.check_verified(wrong)


def test_the_first_steps_of_a_loop_that_walks_backwards(monkeypatch):
    func = library.linear_recurrence(3, 500, reverse=True)
    spoiled(monkeypatch, lambda a, h: off(h[:, -60:]) if a[0].min() >= 1 else None)
    assert [c.inputs for c in verify(func, plan=CHUNKS) if not c.holds] == ["growing"]


def test_kinds_of_what_is_exact_are_told_apart(monkeypatch):
    """A maximum gives the loop's own values: NaN is no infinity there."""

    def change(inputs, h):
        np.copyto(h, np.nan, where=np.isinf(h))

    spoiled(monkeypatch, change)
    func = library.cummax(3, 500)
    assert [c.inputs for c in verify(func, plan=CHUNKS) if not c.holds] == ["infinity"]


@pytest.mark.parametrize("part", [np.s_[:, :10], np.s_[0, 25:], np.s_[2, 25:]])
def test_an_infinite_gate_excuses_only_what_it_reaches(part, monkeypatch):
    """Steps before it and other lanes are compared; it is in the middle of the lane between."""

    def change(inputs, h):
        if is_infinite(inputs[0]).any():
            h[part] += 1

    spoiled(monkeypatch, change)
    func = PROGRAMS["gates_of_any_sign"][0]
    assert [c.inputs for c in verify(func, plan=CHUNKS) if not c.holds] == ["infinity"]


def test_halves_are_held_to_carries_of_float32(monkeypatch):
    """Their loop stands still at 256, where sums of numbers about 1 go on."""

    @T.prim_func(s_tir=True)
    def func(X: T.Buffer((3, 500), "bfloat16"), H: T.Buffer((3, 500), "bfloat16")):
        T.func_attr({"global_symbol": "main"})
        for b, t in T.grid(3, 500):
            with T.sblock("scan"):
                vb = T.axis.spatial(3, b)
                vt = T.axis.scan(500, t)
                H[vb, vt] = T.if_then_else(vt > 0, H[vb, vt - 1], T.bfloat16(0)) + X[vb, vt]

    assert all(c.holds for c in verify(func, plan=CHUNKS))
    spoiled(monkeypatch, lambda a, h: np.copyto(h, np.minimum(h, 256)))
    assert "growing" in {c.inputs for c in verify(func, plan=CHUNKS) if not c.holds}


class Swapped(Affine):
    def combine(self, earlier, later):
        return super().combine(later, earlier)


class Forgetful(Affine):
    def identity(self):
        return (tirx.const(0, self.dtype), tirx.const(0, self.dtype))


def test_a_wrong_algebra_is_named_with_place_and_values(monkeypatch):
    combine = Affine.combine
    monkeypatch.setattr(Affine, "extend", lambda self, f, g: combine(self, g, f))
    func = library.linear_recurrence(3, 500)
    wrong = [c for c in verify(func, plan=CHUNKS) if not c.holds]
    assert wrong
    assert wrong[0].loop != wrong[0].scan
    with pytest.raises(ScanError, match=r"expected H\[\d, \d+\] = .* as the loop has it .* got"):
        parallelize(func, plan=CHUNKS, verify=True)


def test_a_right_one_is_scheduled_as_without():
    func = library.cumsum(2, 300)
    checked = parallelize(func, plan=CHUNKS, verify=True)
    assert checked.script() == parallelize(func, plan=CHUNKS).script()


def test_refused_functions_have_nothing_to_verify():
    from tests.programs.refused_programs import REFUSED

    with pytest.raises(RefusalError, match="sin"):
        verify(REFUSED["sine"][0])


@pytest.mark.parametrize("name", PROGRAMS)
def test_laws_hold_on_samples(name):
    for check in check_laws(extract(PROGRAMS[name][0])):
        assert check.largest_error < 1e-4, check


@pytest.mark.parametrize(("kind", "law"), [(Swapped, "apply"), (Forgetful, "identity")])
def test_broken_laws_show(kind, law):
    found = extract(library.linear_recurrence(3, 10))
    good = found.algebras[0]
    broken = kind(good.a, good.b, good.dtype)
    group = dataclasses.replace(found.groups[0], algebra=broken)
    checks = check_laws(dataclasses.replace(found, groups=(group,)))
    assert any(law in c.law and c.largest_error > 1e-2 for c in checks), checks


def test_command():
    done = CliRunner().invoke(app, ["verify", "library:cumsum", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert {run["inputs"] for run in report["runs"]} == set(verification_inputs.CASES)
    assert all(run["holds"] for run in report["runs"])
    assert len(report["laws"]) == 3
    shown = CliRunner().invoke(app, ["verify", "library:cummax"])
    assert "plan  cpu/" in shown.output


def test_explain_shows_the_laws():
    done = CliRunner().invoke(app, ["explain", "library:cummax"])
    assert done.exit_code == 0, done.output
    assert "exact" in done.output
    told = " ".join(done.output.split())
    assert "combine(combine(f, g), k) = combine(f, combine(g, k))" in told
