"""Random plans of random recurrences of random shapes, against the loop.

The plans come from the search space, so that every decision of a plan is drawn. The examples are
the same in every run; ``TVM_SCAN_EXAMPLES=2000 pytest tests/programs/test_random_plans.py`` draws
as many others, from a seed of their own. A failure names its loop, shape, plan and order of
threads, and the seed that draws it again (``TVM_SCAN_SEED``); what a crash or a kernel that never
ends leaves is the file ``tvm_scan-random-plans-<test>.txt`` in the temporary directory.
"""

import os
import random
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tvm.target import Target

from tests.programs.delta_programs import linear_attention
from tests.programs.random_recurrences import FAMILIES, Shape, inputs_of, source_of, twin
from tests.support import cusim
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, compile_cuda
from tests.support.recurrence_cases import Case, exact_inputs
from tests.support.tiers import longer
from tvm_scan import extract, library, parallelize
from tvm_scan.meta.space import decisions
from tvm_scan.schedules.analysis import first_loop
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.schedules.registry import schedules_of

CPU = Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
EXAMPLES = int(os.environ.get("TVM_SCAN_EXAMPLES", "0"))
SEED = int(os.environ.get("TVM_SCAN_SEED") or random.SystemRandom().randrange(1 << 32))

pytestmark = pytest.mark.timeout(0 if EXAMPLES else 600)


def profile(examples):
    """The same few examples in every run, or many others."""
    chosen = settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        # An example takes a second: shrinking one takes minutes, and says little more.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    return (lambda test: seed(SEED)(chosen(test))) if EXAMPLES else chosen


@contextmanager
def named(test, *example):
    """An example that fails says what it was, whatever Hypothesis makes of the exception."""
    text = "\n".join(str(part) for part in example)
    again = f"TVM_SCAN_EXAMPLES={EXAMPLES} TVM_SCAN_SEED={SEED}" if EXAMPLES else "as ever"
    if EXAMPLES:
        path = Path(tempfile.gettempdir()) / f"tvm_scan-random-plans-{test}.txt"
        path.write_text(f"{text}\ndrawn by: {again}\n")
    try:
        yield
    except Exception as error:
        raise AssertionError(
            f"{text}\ndrawn by: {again}\n{type(error).__name__}: {error}"
        ) from error


# Around a warp, a block, and several tiles of a block; none, one, and primes.
LENGTHS = st.sampled_from((0, 1, 2, 7, 31, 32, 33, 64, 97, 128, 211, 256, 509, 640))
ROWS = st.sampled_from((1, 2, 3, 5, 8, 17, 33))
SHAPES = st.builds(Shape, ROWS, LENGTHS, st.booleans(), st.booleans(), st.booleans(), st.booleans())


@dataclass(frozen=True)
class Problem:
    """A loop, its arguments with outputs that nobody wrote, what they become, and a tolerance."""

    name: str
    shape: Shape
    func: tvm.tirx.PrimFunc = field(repr=False)
    args: list[np.ndarray] = field(repr=False)
    want: list[np.ndarray] = field(repr=False)
    tolerance: float


@st.composite
def problems(draw):
    name = draw(st.sampled_from([*FAMILIES, "selective scan"]))
    shape = draw(SHAPES)
    if name != "selective scan":
        family = FAMILIES[name]
        inputs = inputs_of(family, shape, seed=shape.length)
        want = twin(family, shape, inputs)
        func, tolerance = source_of(family, shape), family.tolerance
    else:
        options = {
            "initial_state": shape.exclusive,
            "final_state": shape.reverse,
            "layout": "bld" if shape.lanes_last else "bdl",
        }
        sizes = (("channels", shape.rows % 7), ("batch", 2), ("states", draw(STATES)))
        case = Case("selective_scan", options=tuple(options.items()), sizes=sizes)
        length = shape.length % 200
        options, arrays, outputs = exact_inputs(case, length)
        func = case.function(None if shape.symbolic else length, options)
        inputs, want, tolerance = list(arrays.values()), list(outputs.values()), 0.0
        want = [array.astype(case.dtype) for array in want]
    rubbish = [np.full_like(array, 77) for array in want]
    return Problem(name, shape, func, [*inputs, *rubbish], want, tolerance)


STATES = st.sampled_from((1, 3, 4, 8, 16))


def drawn_plan(data, target, func):
    """One of the recurrence's plans; every algorithm and tree is as likely."""
    recurrence = extract(func)
    branches = decisions.branches(target, recurrence)
    branch = data.draw(st.sampled_from(branches))
    fitting = [p for p in branch.plans() if decisions.fits(p, target, recurrence)]
    return data.draw(st.sampled_from(fitting))


def check(got, want, tolerance):
    for array, expected in zip(got, want, strict=True):
        if tolerance:
            np.testing.assert_allclose(array, expected, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(array, expected)


@profile(longer(12, 24))
@given(problems(), st.data())
def test_cuda(problem, data):
    """One order of threads and blocks, drawn, after a run under the race detector."""
    plan = drawn_plan(data, CUDA_TARGET, problem.func)
    order = data.draw(st.integers(1, 1 << 20), label="order")
    with named("cuda", problem, plan, f"order of threads {order}"):
        run_cuda(problem, plan, order)


def run_cuda(problem, plan, order):
    want = problem.want
    executable = compile_cuda(parallelize(problem.func, CUDA_TARGET, plan))
    results = []
    for race, turn in ((True, 0), (False, order)):
        with cusim.settings(seed=turn, race=race):
            tensors = [tvm.runtime.tensor(array, tvm.cuda(0)) for array in problem.args]
            executable["main"](*tensors)
            results.append([tensor.numpy() for tensor in tensors[-len(want) :]])
        check(results[-1], want, problem.tolerance)
    for one, other in zip(*results, strict=True):
        assert one.tobytes() == other.tobytes(), "other bits in another order of threads"


@profile(longer(20, 40))
@given(problems(), st.data())
def test_cpu(problem, data):
    plan = drawn_plan(data, CPU, problem.func)
    with named("cpu", problem, plan):
        tensors = [tvm.runtime.tensor(array) for array in problem.args]
        executable = compile_cached(parallelize(problem.func, CPU, plan), target=CPU, plainly=True)
        executable["main"](*tensors)
        results = [tensor.numpy() for tensor in tensors[-len(problem.want) :]]
        check(results, problem.want, problem.tolerance)


def test_a_failure_names_its_example():
    problem = Problem("affine", Shape(3, 7), None, [], [], 0.0)
    expected = r"(?s)'affine'.*length=7.*cpu/lanes\(.*other bits"
    with pytest.raises(AssertionError, match=expected), named("cpu", problem, "cpu/lanes()"):
        raise ValueError("other bits")


@pytest.mark.parametrize("target", [CPU, CUDA_TARGET], ids=["cpu", "cuda"])
def test_every_decision_is_drawn(target):
    """Of each field that can differ, the spaces that are drawn from hold several values."""
    shape = Shape(33, 640, lanes_last=True, symbolic=True)
    funcs = [source_of(FAMILIES[name], shape) for name in ("affine", "logsumexp")]
    funcs += [source_of(FAMILIES["affine"], Shape(33, 640)), library.selective_scan(2, 8, 97, 4)]
    funcs.append(library.cumsum(2, 1 << 17))
    funcs.append(linear_attention(4096, 2, 64))
    found = {n: set() for s in schedules_of(device_of(target).plans) for n in s.decisions()}
    for func in funcs:
        for branch in decisions.branches(target, first_loop(func)):
            for plan in branch.plans():
                for decision in plan.decisions():
                    found[decision].add(getattr(plan, decision))
    assert not {name for name, values in found.items() if len(values) < 2} - NOT_DECIDED


#: The target of these tests leaves no choice in these: AVX-512 alone has the instruction.
NOT_DECIDED = {"ldexp"}
