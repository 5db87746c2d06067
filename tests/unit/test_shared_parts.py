"""What the states of a step share is made once; a sum over them that begins at zero."""

from dataclasses import replace

import pytest
from tvm import tirx
from tvm.script import tirx as T

from tests.support.cuda_harness import CUDA_TARGET, emit_cuda
from tvm_scan import ScanPlan, extract, library, parallelize, tir
from tvm_scan.schedules.common.shared_parts import shared_parts
from tvm_scan.schedules.common.state_split import split_of

STEPS = 4


@pytest.mark.parametrize("algorithm", ["three_phase", "serial_tiles", "single_pass"])
def test_a_tree_over_states_has_one_softplus_a_step(algorithm):
    """Of two kernels, the one that reduces has it once, the one that replays twice."""
    plan = ScanPlan.of(
        "cuda", algorithm, threads_per_block=32, items_per_thread=STEPS, block_tree="warp"
    ).with_(vector_loads=True)
    text = emit_cuda(parallelize(library.selective_scan(1, 8, 256, 16), CUDA_TARGET, plan))
    passes = 3 if algorithm == "three_phase" else 2
    assert text.count("log1pf(") == passes * STEPS


def test_what_depends_on_a_state_stays():
    x, c = tirx.Var("x", "float32"), tirx.Var("c", "bool")
    n = tirx.Var("n", "int32")
    state = tirx.Cast("float32", n)
    tail = tirx.log1p(tirx.exp(x))
    names, (part, other) = shared_parts([tail * state, tirx.exp(tail * state)], [n])
    ((name, value),) = names
    assert tir.structurally_equal(value, tail)
    assert tir.structurally_equal(part, name * state)
    assert tir.structurally_equal(other, tirx.exp(name * state))
    # What a condition guards is made where it holds, and a condition that is shared moves whole.
    guarded = T.if_then_else(n > 0, tail, x)
    assert shared_parts([guarded], [n]) == ([], [guarded])
    whole = T.if_then_else(c, tail, x)
    assert tir.structurally_equal(shared_parts([whole * state], [n])[0][0][1], whole)
    names, (part,) = shared_parts([tail], [])
    assert names == [] and part.same_as(tail), "an element of one cell has nothing to share"


def test_a_sum_begins_at_zero_or_not():
    """Where it does, the threads' sums are the sum; else they are added to what it begins with."""
    split = split_of(extract(library.selective_scan(1, 4, 64, 16)))
    (cell,) = split.sums
    assert split.begins_at_zero(cell)
    first = tirx.BufferStore(cell.source, tirx.FloatImm("float32", 1.0), list(cell.indices))
    other = [s for s in split.before if cell.source not in tir.buffers_stored(s)]
    assert not replace(split, before=(*other, first)).begins_at_zero(cell)
    assert not replace(split, before=(*split.before, first)).begins_at_zero(cell)
