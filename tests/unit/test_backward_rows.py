"""Rows that are read backwards: the last row first, so that memory is read in one direction."""

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T
from tvm.target import Target

from tvm_scan import ScanPlan, library, parallelize, tir

CPU = Target.from_device("cpu")


@pytest.mark.parametrize("rows", [5, None])
@pytest.mark.parametrize("plan", ["time_vector=16", "time_vector=16, time_runs=True"])
def test_vectors_of_time_take_rows_in_the_order_of_their_steps(plan, rows):
    for reverse in (False, True):
        func = library.cumsum(rows, 100, reverse=reverse)
        out = parallelize(func, CPU, ScanPlan.parse(f"cpu/lanes({plan})"))
        blocks = [block.block for block in tir.nodes(out.body, s_tir.SBlockRealize)]
        (block,) = [block for block in blocks if block.name_hint == "scan_lanes"]
        (axis,) = block.iter_vars
        zero = tirx.IntImm(tir.dtype_of(axis.dom.extent), 0)
        first = axis.dom.extent - 1 if reverse else zero
        stores = [
            store for store in tir.nodes(block.body, tirx.BufferStore) if store.buffer.name == "Y"
        ]
        assert stores
        for store in stores:
            row = tir.substitute(store.indices[0], tir.VarMap([(axis.var, zero)]))
            assert tir.as_int(tir.simplify(row - first)) == 0, row


@T.prim_func(s_tir=True)
def shared_gates(
    A: T.Buffer((4, 50), "float64"),
    B: T.Buffer((3, 50), "float64"),
    X: T.Buffer((4, 3, 2, 50), "float64"),
    Y: T.Buffer((4, 3, 2, 50), "float64"),
):
    for b, i, j, t in T.grid(4, 3, 2, 50):
        Y[b, i, j, 49 - t] = (
            T.if_then_else(t > 0, Y[b, i, j, 50 - t], T.float64(0)) * A[b, 49 - t]
            + X[b, i, j, 49 - t] * B[i, 49 - t]
        )


@pytest.mark.parametrize("plan", ["time_vector=16", "time_vector=16, time_runs=True"])
def test_a_row_finds_what_it_shares_with_others(plan):
    """TVM divides numbers of rows that fall with the loop's variable wrongly."""
    out = parallelize(shared_gates, CPU, ScanPlan.parse(f"cpu/lanes({plan})"))
    rng = np.random.default_rng(0)
    a, b, x = (rng.uniform(-1, 1, shape) for shape in ((4, 50), (3, 50), (4, 3, 2, 50)))
    y = tvm.runtime.tensor(np.zeros_like(x))
    tvm.compile(out, target=CPU)(*map(tvm.runtime.tensor, (a, b, x)), y)
    expected, before = np.zeros_like(x), np.zeros((4, 3, 2))
    for t in reversed(range(50)):
        before = before * a[:, t, None, None] + x[..., t] * b[None, :, t, None]
        expected[..., t] = before
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-12)
