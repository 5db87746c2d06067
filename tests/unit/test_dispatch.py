"""Several plans in one function: both sides of every border, and who makes such functions."""

import itertools

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tests.golden.test_resources import barriers
from tests.meta.test_nearest import CHUNKS, PAIRS, commit
from tests.programs.test_delta import attention, called
from tests.relax.test_passes import expected, module
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import (
    CUDA_TARGET,
    compile_cuda,
    emitted_source,
    in_every_order,
    run_cuda,
)
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tvm_scan import ScanPlan, extract, library
from tvm_scan.errors import PlanError, RefusalError
from tvm_scan.meta import RecordStore
from tvm_scan.meta.store.dispatch import dispatched, plans_by_length
from tvm_scan.relax import ParallelizeScans, get_pipeline
from tvm_scan.schedules.dispatch import dispatch_by_length

CPU = Target.from_device("cpu")
LOOP = ScanPlan.of("cpu", "sequential")
#: Of a few lanes these are alike: which is predicted to take less depends on the CPU.
FEW_STEPS = {LOOP, *(ScanPlan.of("cpu", "lanes", lane_block=lanes) for lanes in (1, 2, 4))}
CASES = [(20, LOOP), (100, PAIRS), (None, CHUNKS)]
LENGTHS = (0, 1, 19, 20, 21, 99, 100, 101, 1000)


def run(built, x, count):
    out = tvm.runtime.tensor(np.full_like(x[0], -7))
    built(*(tvm.runtime.tensor(value) for value in x[:count]), out)
    return out.numpy()


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"layout": "ld"}])
def test_both_sides_of_each_border(options):
    func = library.linear_recurrence(3, None, **options)
    made = dispatch_by_length(func, CPU, CASES)
    built = compile_cached(made.with_attr("global_symbol", "main"), target=CPU)["main"]
    loop = compile_cached(func.with_attr("global_symbol", "main"), target=CPU)["main"]
    for length in LENGTHS:
        shape = (length, 3) if options.get("layout") == "ld" else (3, length)
        x = np.random.default_rng(length).integers(-1, 2, (2, *shape)).astype("float32")
        np.testing.assert_array_equal(run(built, x, 2), run(loop, x, 2))


def test_each_plan_is_in_it_once():
    made = dispatch_by_length(library.cumsum(None, None), CPU, CASES)
    text = made.script()
    assert text.count("if length <= T.int64(20)") == 1
    assert text.count("if length <= T.int64(100)") == 1
    assert text.count('T.sblock("scan_reduce")') == 1
    assert text.count('T.sblock("scan_lanes")') == 1
    only = dispatch_by_length(library.cumsum(None, None), CPU, CASES[-1:])
    assert "if length <= " not in only.script()


def test_a_state_of_several_cells():
    func = library.selective_scan(1, 4, None, 8)
    plans = [(30, LOOP), (None, ScanPlan.of("cpu", "lanes", lane_block=4, vectorize=True))]
    entry = library.LIBRARY["selective_scan"]
    built = compile_cached(
        dispatch_by_length(func, CPU, plans).with_attr("global_symbol", "main"), target=CPU
    )
    for length in (30, 31):
        inputs = entry.example_inputs(np.random.default_rng(0), 1, 4, length, 8)
        out = tvm.runtime.tensor(np.zeros((1, 4, length), "float32"))
        built["main"](*(tvm.runtime.tensor(np.ascontiguousarray(v)) for v in inputs.values()), out)
        np.testing.assert_allclose(out.numpy(), entry.expected(inputs)["out"], 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("cases", "text"),
    [
        ([(20, LOOP)], r"expected ascending lengths and None at the end, got \[20\]"),
        ([(20, LOOP), (20, PAIRS), (None, CHUNKS)], "expected ascending lengths"),
        ([(None, LOOP), (None, PAIRS)], "expected ascending lengths"),
        ([(20, LOOP), (None, ScanPlan.of("cuda", "lanes"))], "expected a plan for cpu"),
    ],
)
def test_bad_cases(cases, text):
    with pytest.raises(PlanError, match=text):
        dispatch_by_length(library.cumsum(3, None), CPU, cases)


def test_no_recurrence():
    from tests.meta.test_search import refused

    with pytest.raises(RefusalError, match=r"tirx\.sin of the carry"):
        dispatch_by_length(refused, CPU, CASES)


def test_on_a_gpu_the_host_branches():
    few, many = (ScanPlan.of("cuda", "lanes", threads_per_block=n) for n in (32, 64))
    built = compile_cuda(
        dispatch_by_length(library.cumsum(70, None), CUDA_TARGET, [(8, few), (None, many)])
    )
    for length in (8, 9):
        x = np.random.default_rng(0).integers(-3, 4, (70, length)).astype("float32")

        def call(x=x):
            out = tvm.runtime.empty(x.shape, "float32", tvm.cuda())
            built["main"](tvm.runtime.tensor(x, tvm.cuda()), out)
            return [out.numpy()]

        np.testing.assert_array_equal(in_every_order(call, built)[0], np.cumsum(x, 1))
    tree = ScanPlan.of("cuda", "serial_tiles", threads_per_block=32, items_per_thread=2)
    with pytest.raises(PlanError, match="TVM puts none into a branch"):
        dispatch_by_length(library.cumsum(70, None), CUDA_TARGET, [(8, few), (None, tree)])


WALK = ScanPlan.parse(
    "cuda/lanes(threads_per_block=32, items_per_thread=4, vector_loads=True, threads_per_lane=4, "
    "block_load=transposed, stages=2)"
)


def test_walks_whole_and_in_chunks_by_length():
    """Staged walks have barriers of their own, which may stand in a branch of the host."""
    options = (("initial_state", True), ("final_state", True))
    case = Case(
        "selective_scan",
        options=options,
        sizes=(("batch", 1), ("channels", 8), ("states", 8)),
    )
    chosen, _, _ = exact_inputs(case, 1)
    cases = [(40, WALK), (None, WALK.with_(chunks=4))]
    func = dispatch_by_length(library.selective_scan(1, 8, None, 8, **chosen), CUDA_TARGET, cases)
    executable = compile_cuda(func)
    assert barriers(emitted_source(executable)).count(0) == 1, "all but the kernel of carries"
    for length in (0, 1, 40, 41, 300):
        _, inputs, want = exact_inputs(case, length)
        outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
        got = run_cuda(func, [*inputs.values(), *outputs], executable=executable)
        check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))
    with pytest.raises(PlanError, match="TVM puts none into a branch"):
        dispatch_by_length(
            library.selective_scan(1, 8, None, 8),
            CUDA_TARGET,
            [(8, WALK.with_(stages=1)), *cases[1:]],
        )


def test_the_length_decides_on_chunks():
    """Of 2048 channels at batch 1, which leave the chip half empty: only long ones are cut."""
    _, cases = dispatched(library.selective_scan(1, 2048, None, 16), CUDA_TARGET)
    chunks = [plan.chunks for _, plan in cases]
    assert chunks[0] == 0 and chunks[-1] >= 4
    pairs = itertools.pairwise(cases)
    border = next(a for (a, one), (_, two) in pairs if one.chunks < two.chunks)
    assert 256 < border < 8192
    assert all(a != b for (_, a), (_, b) in itertools.pairwise(cases))
    stock = ms.database.MemoryDatabase()
    assert dispatched(library.selective_scan(1, 2048, None, 16), CUDA_TARGET, stock) is None
    many = dispatched(library.selective_scan(64, 2048, None, 16), CUDA_TARGET)
    assert many is None or all(plan.chunks == 0 for _, plan in many[1]), "lanes fill the chip"


def test_plans_by_length_come_from_defaults_and_records(tmp_path):
    found = extract(library.cumsum(3, None))
    cases = plans_by_length(found, CPU)
    assert 2 <= len(cases) <= 3
    assert cases[0][1] in FEW_STEPS
    assert cases[-1][0] is None and cases[-1][1] not in FEW_STEPS
    borders = [border for border, _ in cases[:-1]]
    assert borders == sorted(borders)
    store = RecordStore(tmp_path / "records")
    commit(store, library.cumsum(3, 1 << 20), CHUNKS, 1e-6)
    assert plans_by_length(found, CPU, store)[-1] == (None, CHUNKS)
    assert dispatched(library.cumsum(3, 100), CPU) is None
    assert dispatched(library.cumsum(3, None), CUDA_TARGET) is None


def test_no_more_than_three_plans_are_held(tmp_path):
    found = extract(library.cumsum(3, None))
    store = RecordStore(tmp_path / "records")
    plans = [PAIRS, CHUNKS, PAIRS.with_(lane_block=4), CHUNKS.with_(chunks=32), CHUNKS]
    for power, plan in zip((4, 8, 12, 16, 21), plans, strict=True):
        commit(store, library.cumsum(3, 1 << power), plan, 1e-6)
    cases = plans_by_length(found, CPU, store)
    assert len(cases) == 3
    borders = [border for border, _ in cases]
    assert borders[-1] is None and borders[:-1] == sorted(borders[:-1])
    # Both ends have their own plan, unless it is the one for the fewest lengths.
    assert {plan for _, plan in cases} <= {*FEW_STEPS, *plans}
    assert dispatched(library.cumsum(3, None), CPU, store)[1] == cases


def test_a_relax_function_of_symbolic_length(caplog):
    length = tvm.tirx.Var("n", "int64")
    mod = module(4, length, library.linear_recurrence(4, None))
    with caplog.at_level("INFO", "tvm_scan"):
        scheduled = ParallelizeScans(CPU)(mod)["recurrence"]
    assert "recurrence holds plans by length" in caplog.text
    borders = [border for border, _ in dispatched(mod["recurrence"], CPU)[1][:-1]]
    assert scheduled.script().count("if length <= ") == len(borders) >= 1
    pipeline = get_pipeline(CPU)
    vm = relax.VirtualMachine(compile_cached(mod, target=CPU, relax_pipeline=pipeline), tvm.cpu())
    for n in sorted({n for b in borders if b < 1 << 15 for n in (b, b + 1)}):
        a, x = np.random.default_rng(0).random((2, 4, n)).astype("float32")
        got = vm["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(x)).numpy()
        np.testing.assert_allclose(got, expected(a, x), 1e-4, 1e-4)


def test_a_delta_rule_is_cut_in_time_where_it_is_long():
    """For many cores; run by those that are here, on both sides of each border."""
    many = Target({"kind": "llvm", "mcpu": "znver3", "num-cores": 16})
    made = {}

    def run(func, given):
        if not made:
            made["func"], made["cases"] = dispatched(func, many)
            made["compiled"] = compile_cached(made["func"], target=CPU, plainly=True)
        return called(made["compiled"], given)

    def check(length):
        both = attention(length, 32, 32, symbolic=True, heads=1, run=run)
        for got, want in zip(*both, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    check(1)
    *borders, last = made["cases"]
    assert not borders[0][1].chunks and last[1].chunks
    for border, _ in borders:
        check(border)
        check(border + 1)
