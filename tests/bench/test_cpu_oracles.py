"""The check before the clock: it takes what float32 loops compute, and nothing else."""

import numpy as np
import pytest
import tvm

from bench.cpu_loops import KINDS, inputs_of, loop_of
from bench.cpu_oracles import expected, is_right
from tests.support.compiled import compile_cached

SHAPES = {
    "cumsum rows": (3, 5000),
    "affine middle": (2, 700, 3),
    "selective scan": (1, 3, 200),
    "selective scan bfloat16": (1, 3, 200),
}
#: Longer than what is walked from the first step on, and as long as README's row.
LONG = [("affine", (1, 1 << 22)), ("segmented", (2, 1 << 19))]


def looped(cases):
    """What the sequential loops make of their inputs, compiled at once."""
    functions = {
        f"f{i}": loop_of(*case).with_attr("global_symbol", f"f{i}") for i, case in enumerate(cases)
    }
    library = compile_cached(tvm.IRModule(functions), target="llvm")
    for (kind, shape), (name, func) in zip(cases, functions.items(), strict=True):
        arrays = inputs_of(kind, shape)
        given = [np.ascontiguousarray(arrays[str(p.name)]) for p in func.params[:-1]]
        tensors = [tvm.runtime.tensor(a) for a in (*given, arrays["out"])]
        library[name](*tensors)
        yield kind, arrays, tensors[-1].numpy()


def test_the_loop_is_right_and_what_is_near_it_is_not():
    cases = [(kind, SHAPES.get(kind, (3, 5000))) for kind in KINDS] + LONG
    for kind, arrays, result in looped(cases):
        assert is_right(kind, result, arrays), kind
        assert not is_right(kind, np.zeros_like(result), arrays), kind
        axis = expected(kind, arrays).axis
        last = np.moveaxis(np.zeros_like(result), axis, 0)
        last[-1] = np.moveaxis(result, axis, 0)[-1]
        assert not is_right(kind, np.moveaxis(last, 0, axis), arrays), f"{kind}: the last step only"
        moved = np.roll(result, 1, axis)
        assert not is_right(kind, moved, arrays), f"{kind}: a step late"
        assert not is_right(kind, result[..., :-1], arrays), f"{kind}: another shape"
        off = result.copy()
        middle = np.moveaxis(off, axis, 0)
        middle[len(middle) // 3 :] = middle[len(middle) // 3 :] * np.float32(1.02)
        assert not is_right(kind, off, arrays), f"{kind}: two percent off from a third on"


@pytest.mark.parametrize(("kind", "shape"), [("affine", (1, 1 << 22)), ("cumsum", (1, 1 << 20))])
def test_the_tolerance_is_small_beside_the_values(kind, shape):
    """Of README's row: 12.8 was allowed where the value is 2.9."""
    want = expected(kind, inputs_of(kind, shape))
    assert len(want.steps) > 60
    assert np.median(want.tolerance) < 1e-2 * np.median(np.abs(want.values))
