"""Rows that are walked backwards: the last row first, so that memory is read in one direction."""

import pytest
from tvm import s_tir, tirx
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
