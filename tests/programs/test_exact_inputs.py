"""The exact inputs of the library tell every index: another cell gives other values."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from tests.support.compiled import compile_cached
from tests.support.exact_inputs import exact_case
from tvm_scan import tir
from tvm_scan.library import LIBRARY

SEED = 20240229
SIZES = {"rows": 3, "lanes": 3, "batch": 2, "channels": 5, "states": 4, "length": 40}
OPTIONS = {
    "ema": {"alpha": "lane", "initial": "buffer"},
    "linear_recurrence": {"initial_state": True},
    "selective_scan": {"initial_state": True, "form": "step"},
}


def read_elsewhere(func):
    """The function once for each index of each load, which is then the next cell's."""
    loads = []
    tvm_ffi.structural_walk(func.body, [(TensorLoad, loads.append)])
    for place, load in enumerate(loads):
        for axis, extent in enumerate(tir.shape_of(load.source)):
            if tir.as_int(extent) == 1:
                continue
            seen = 0

            def on_load(node, place=place, axis=axis, extent=extent):
                nonlocal seen
                seen += 1
                if seen - 1 != place:
                    return node
                indices = list(node.indices)
                # No wrap-around by floormod: TVM 0.27 compiles (72 - t) % 37 wrongly.
                moved = tirx.Select(indices[axis] + 1 < extent, indices[axis] + 1, 0 * extent)
                indices[axis] = moved
                return tirx.BufferLoad(node.source, indices)

            body = tvm_ffi.structural_map(func.body, (TensorLoad, on_load))
            yield f"{load}, axis {axis} (load {place})", func.with_body(body)


def outputs(executable, name, func, case):
    entry = LIBRARY[name]
    want = entry.expected(case.inputs, **case.options)
    tensors = {key: tvm.runtime.tensor(a) for key, a in case.inputs.items()}
    tensors |= {key: tvm.runtime.tensor(np.full(a.shape, 77, "float32")) for key, a in want.items()}
    executable(*(tensors[str(param.name)] for param in func.params))
    return want, {key: tensors[key].numpy() for key in want}


@pytest.mark.parametrize("name", LIBRARY)
def test_a_wrong_index_shows(name):
    sizes = [SIZES[size] for size in LIBRARY[name].size_names]
    rng = np.random.default_rng(SEED)
    case = exact_case(name, rng, *sizes, **OPTIONS.get(name, {}))
    func = LIBRARY[name].factory(*sizes, **case.options)
    changed = dict(read_elsewhere(func))
    functions = {"original": func, **{f"f{i}": f for i, f in enumerate(changed.values())}}
    module = tvm.IRModule({k: f.with_attr("global_symbol", k) for k, f in functions.items()})
    library = compile_cached(module, target="llvm")
    want, got = outputs(library["original"], name, func, case)
    for key, array in want.items():
        np.testing.assert_array_equal(got[key], array)
    unseen = [
        change
        for number, change in enumerate(changed)
        if all(
            np.array_equal(array, want[key], equal_nan=True)
            for key, array in outputs(library[f"f{number}"], name, func, case)[1].items()
        )
    ]
    assert not unseen, unseen
