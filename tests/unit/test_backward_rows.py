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
def shared_rows(
    X: T.Buffer((4, 96, 3), "float64"),
    Y: T.Buffer((4, 96), "float64"),
    S: T.Buffer((4, 3, 2), "float64"),
):
    for b, t, i, j in T.grid(4, 96, 3, 2):
        S[b, i, j] = S[b, i, j] + X[b, 95 - t, i] * Y[b, t]


@pytest.mark.parametrize("plan", ["time_vector=16", "time_vector=32"])
def test_a_row_finds_what_it_shares_with_others(plan):
    """TVM divides a row's number wrongly where it falls while the loop's variable rises."""
    out = parallelize(shared_rows, CPU, ScanPlan.parse(f"cpu/lanes({plan})"))
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1, 1, (4, 96, 3)), rng.uniform(-1, 1, (4, 96))
    s = tvm.runtime.tensor(np.zeros((4, 3, 2)))
    tvm.compile(out, target=CPU)(tvm.runtime.tensor(x), tvm.runtime.tensor(y), s)
    expected = np.einsum("bti,bt->bi", x[:, ::-1], y)
    np.testing.assert_allclose(s.numpy(), np.stack([expected] * 2, -1), rtol=1e-12, atol=1e-12)
