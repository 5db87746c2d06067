"""Order: a monoid that is far from commutative goes through every tree.

The bicyclic monoid: (a, b) is "pop a, then push b" on a stack that counts, h -> max(h - a, 0) + b.
Swapped operands, an identity in the wrong place or a dropped element all show at once.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

import tvm_scan.algebra
from tests.support.compiled import compile_cached
from tests.support.cuda_harness import CUDA_TARGET, run_cuda
from tvm_scan import ScanPlan, extract, parallelize, tir
from tvm_scan.algebra.base import Algebra, NotInFamily
from tvm_scan.arguments import host_target


@dataclass(frozen=True, eq=False)
class Bicyclic(Algebra):
    name: ClassVar[str] = "bicyclic"
    pop: Any
    push: Any

    @classmethod
    def prove(cls, system):
        step, old, _ = system.only
        if not (isinstance(step, tirx.Add) and isinstance(step.a, tirx.Max)):
            return NotInFamily(step, "not max(h - a, 0) + b")
        popped = step.a.a
        held = isinstance(popped, tirx.Sub) and popped.a.same_as(old)
        if not held or tir.as_int(step.a.b) != 0:
            return NotInFamily(step, "not max(h - a, 0) + b")
        return cls(popped.b, step.b)

    dtypes = ("int32", "int32")

    def lift(self):
        return (self.pop, self.push)

    def combine(self, earlier, later):
        met = tirx.Min(earlier[1], later[0])
        return (earlier[0] + later[0] - met, earlier[1] + later[1] - met)

    def identity(self):
        return (tirx.IntImm("int32", 0),) * 2

    def apply(self, element, carries):
        return (tirx.Max(carries[0] - element[0], tirx.IntImm("int32", 0)) + element[1],)

    def formulas(self):
        return {"step": "h' = max(h - a, 0) + b"}


@T.prim_func(s_tir=True)
def stack(
    A: T.Buffer((3, 233), "int32"), B: T.Buffer((3, 233), "int32"), H: T.Buffer((3, 233), "int32")
):
    for b in range(3):
        for t in range(233):
            H[b, t] = T.max(T.if_then_else(t > 0, H[b, t - 1], 5) - A[b, t], 0) + B[b, t]


CPU_PLANS = (
    "cpu/lanes(lane_block=2)",
    "cpu/three_phase(chunks=2)",
    "cpu/three_phase(lane_block=4, chunks=8)",
    "cpu/three_phase(chunks=100)",
)
CUDA_PLANS = (
    "cuda/serial_tiles(threads_per_block=2, items_per_thread=1)",
    "cuda/serial_tiles(threads_per_block=32, items_per_thread=3)",
    "cuda/serial_tiles(threads_per_block=64, items_per_thread=1)",
    "cuda/three_phase(threads_per_block=16, items_per_thread=2)",
)


@pytest.fixture(autouse=True)
def family(monkeypatch):
    monkeypatch.setattr(tvm_scan.algebra, "FAMILIES", (Bicyclic,))


@pytest.fixture(scope="module")
def case():
    a, b = np.random.default_rng(3).integers(0, 9, (2, 3, 233)).astype("int32")
    want, state = np.zeros_like(a), np.full(3, 5, "int32")
    for t in range(233):
        state = np.maximum(state - a[:, t], 0) + b[:, t]
        want[:, t] = state
    return a, b, want


def test_the_step_is_not_affine():
    assert extract(stack).algebras[0].name == "bicyclic"


@pytest.mark.parametrize("plan", CPU_PLANS)
def test_cpu(plan, case):
    a, b, want = case
    target = host_target()
    built = compile_cached(parallelize(stack, target, ScanPlan.parse(plan)), target=target)
    got = tvm.runtime.tensor(np.full_like(want, 77))
    built(tvm.runtime.tensor(a), tvm.runtime.tensor(b), got)
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("plan", CUDA_PLANS)
def test_cuda(plan, case):
    a, b, want = case
    scheduled = parallelize(stack, CUDA_TARGET, ScanPlan.parse(plan))
    got = run_cuda(scheduled, [a, b, np.full_like(want, 77)])[2]
    np.testing.assert_array_equal(got, want)
