"""Indices that a thread makes once: which of their terms are held, and how an array is indexed."""

import pytest
import tvm_ffi
from tvm import tirx
from tvm.ir import Call

from tvm_scan import tir
from tvm_scan.schedules.common.ir import as_dtype, local
from tvm_scan.schedules.gpu.thread.held import HOLDS_NOTHING, HeldIndices

SLOT, TILE = (tirx.Var(name, "int64") for name in ("slot", "tile"))
THREAD = as_dtype(SLOT % 64, "int32")
SHAPE = (8, 2048, 4096)


def value_of(index, held, slot, tile):
    """What an index is for a thread and a tile, its registers as ``begin`` sets them."""
    made = tir.VarMap((store.buffer, store.value.args[1]) for store in held.begin())
    index = tir.map_loads(index, lambda load: made[load.source])

    def called(call):
        # Both functions return what they are given.
        return call.args[1] if tir.call_name(call) == "tirx.cuda.func_call" else call

    index = tvm_ffi.structural_map(index, (Call, called))
    at = {SLOT: tirx.IntImm("int64", slot), TILE: tirx.IntImm("int64", tile)}
    return tir.as_int(tir.simplify(tir.substitute(index, tir.VarMap(at.items()))))


def element_at(row, tile):
    """Indices of a vector of four: of a row that the thread copies, and of a tile of 32 steps."""
    return [SLOT // 2048, row, tile * 32 + as_dtype(THREAD % 8 * 4, "int64")]


def test_indices_that_differ_in_other_terms_have_one_register():
    held = HeldIndices(SLOT)
    tile = as_dtype(TILE % 2, "int32")
    indices = [tile * 4992 + THREAD // 8 * 40 + THREAD % 8 * 4 + 320 * r for r in range(4)]
    found = [held(index, 4) for index in indices]
    assert len(held.buffers) == 1
    for index, other in zip(indices, found, strict=True):
        for slot, number in ((0, 0), (77, 3), (4095, 8)):
            want = value_of(index, held, slot, number)
            assert value_of(other, held, slot, number) == want


def test_an_element_has_one_index_of_32_bits():
    held, buffer = HeldIndices(SLOT), local("x", SHAPE, "float32", "global")
    rows = [SLOT % 2048 // 64 * 32 + as_dtype(THREAD // 8, "int64") + 8 * r for r in range(4)]
    for row in rows:
        plain = element_at(row, TILE + 1)
        *outer, last = held.element(buffer, plain)
        assert [tir.as_int(index) for index in outer] == [0, 0]
        assert isinstance(last, tirx.Cast) and tir.dtype_of(last.value) == "int32"
        for slot, tile in ((0, 0), (5000, 3), (16383, 126)):
            b, d, t = (value_of(index, held, slot, tile) for index in plain)
            assert value_of(last, held, slot, tile) == (b * SHAPE[1] + d) * SHAPE[2] + t
    assert len(held.buffers) == 1


def test_a_vector_keeps_its_length():
    held, buffer = HeldIndices(SLOT), local("x", SHAPE, "float32", "global")
    *outer, last = element_at(SLOT % 2048, TILE)
    vector = held.element(buffer, [*outer, tirx.Ramp(last, tirx.IntImm("int64", 1), 4)])[-1]
    assert isinstance(vector, tirx.Ramp) and vector.lanes == 4


@pytest.mark.parametrize("why", ["nothing held", "large", "not known", "of no thread"])
def test_other_elements_are_left(why):
    held = HOLDS_NOTHING if why == "nothing held" else HeldIndices(SLOT)
    shape = {"large": (1 << 10, 1 << 10, 1 << 11), "not known": (tirx.Var("n", "int64"), 8, 8)}
    buffer = local("x", shape.get(why, SHAPE), "float32", "global")
    plain = [TILE, TILE, TILE] if why == "of no thread" else element_at(SLOT % 2048, TILE)
    assert held.element(buffer, plain) is plain
    assert not held.buffers


def test_a_vector_that_is_not_aligned_is_left():
    held = HeldIndices(SLOT)
    index = THREAD * 6 + as_dtype(TILE, "int32") * 4
    assert held(index, 4) is index and held(index, 2) is not index
