"""Zero wrong accepts: one change to an accepted loop is refused, or still computes its own loop.

Every mutant differs from an accepted program by one operator, operand order or index. If it is
accepted, its parallel form must equal the mutant's own sequential loop exactly (the inputs are
small integers; what grows, grows the same in both).
"""

import random

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from tests.accepted_programs import PROGRAMS
from tests.test_extraction import CPU, arguments, sequential, unbound
from tvm_scan import Recurrence, ScanPlan, extract, parallelize, tir

SWAPS = {
    tirx.Add: (tirx.Sub, tirx.Mul, tirx.Max),
    tirx.Sub: (tirx.Add, tirx.Min),
    tirx.Mul: (tirx.Add, tirx.Max),
    tirx.Max: (tirx.Min, tirx.Add),
    tirx.Min: (tirx.Max, tirx.Sub),
    tirx.GT: (tirx.LT, tirx.GE),
    tirx.EQ: (tirx.NE,),
}
PLANS = [ScanPlan("cpu", "three_phase", chunks=4), ScanPlan("cpu", "lanes", lane_block=2)]
PER_PROGRAM = 12


def is_site(node):
    """Whether a node may change: index arithmetic may not, lest the mutant leave its buffers."""
    index_like = tir.dtype_of(node).startswith("int") and not tir.loads(node)
    return not index_like


def sites(func):
    """Number of places where a value expression can be changed."""
    count = [0]

    def visit(node):
        count[0] += is_site(node)

    for store in stores(func):
        tvm_ffi.structural_walk(store.value, [((*SWAPS, TensorLoad), visit)])
    return count[0]


def stores(func):
    found = []
    tvm_ffi.structural_walk(func.body, [(tirx.BufferStore, lambda s: found.append(s))])
    return found


def mutate(func, site, choice):
    """Change the value expression at place ``site`` in the way that ``choice`` picks."""
    seen = [0]

    def change(node):
        if not is_site(node):
            return node
        seen[0] += 1
        if seen[0] - 1 != site:
            return node
        if isinstance(node, TensorLoad):
            if not node.indices:
                return node
            indices = list(node.indices)
            dim = choice.randrange(len(indices))
            extent = tir.shape_of(node.source)[dim]
            # Clipped to the buffer, so that the mutant reads nothing foreign. (A wrap-around by
            # floormod would do, but TVM 0.27 compiles (72 - t) % 37 wrongly.)
            if choice.random() < 0.5:
                indices[dim] = tirx.Min(indices[dim] + 1, extent - 1)
            else:
                indices[dim] = tirx.Max(indices[dim] - 1, tir.zero_like(extent))
            return tirx.BufferLoad(node.source, indices)
        if choice.random() < 0.3:
            return type(node)(node.b, node.a)
        kind = choice.choice(SWAPS[type(node)])
        return kind(node.a, node.b)

    def on_store(store):
        value = tvm_ffi.structural_map(store.value, ((*SWAPS, TensorLoad), change))
        return tirx.BufferStore(store.buffer, value, store.indices)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, on_store)))


#: Not mutated: its extents are not known here; it overflows, which TVM's LLVM code takes for
#: undefined in the loop as in the scan, so that no mutant of it has a value to be held to.
LEFT_OUT = ("symbolic", "affine_wraps")


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in LEFT_OUT])
def test_mutants_are_refused_or_right(name):
    func = unbound(PROGRAMS[name][0])
    choice = random.Random(name)
    accepted = 0
    for _ in range(PER_PROGRAM):
        mutant = mutate(func, choice.randrange(sites(func)), choice)
        if not isinstance(extract(mutant), Recurrence):
            continue
        accepted += 1
        args = arguments(mutant, seed=accepted)
        # Few steps may already overflow a float's integers; shorten growth by small data.
        args = [np.clip(a, -1, 1) if a.dtype.kind == "f" else a for a in args]
        with np.errstate(all="ignore"):
            want = sequential(mutant, args)
        for plan in PLANS:
            tensors = [tvm.runtime.tensor(a) for a in args]
            tvm.compile(parallelize(mutant, CPU, plan), target=CPU)(*tensors)
            for tensor, expected in zip(tensors, want, strict=True):
                exact = np.abs(expected.astype("float64")) < 2**24
                got = tensor.numpy()
                np.testing.assert_array_equal(got[exact], expected[exact], mutant.script())
