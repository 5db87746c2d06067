"""The writer of loops: what it writes is the loop that a script says."""

import inspect
import re

import pytest
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from tvm_scan import extract, loops
from tvm_scan.library.arguments import FUNC_ATTRS, make_extent
from tvm_scan.loops import writer
from tvm_scan.recurrence import Recurrence

ROWS, LENGTH = 3, 50
ATTRS = {**FUNC_ATTRS, "global_symbol": "main"}


@T.prim_func(s_tir=True)
def row_sums(
    X: T.Buffer((ROWS, LENGTH), "float16"),
    Y: T.Buffer((ROWS, LENGTH), "float16"),
) -> None:
    T.func_attr(ATTRS)
    total = T.sblock_alloc_buffer((ROWS,), "float32")
    for r in range(ROWS):
        with T.sblock("init"):
            vr = T.axis.spatial(ROWS, r)
            total[vr] = T.float32(0)
        for t in range(LENGTH):
            with T.sblock("scan"):
                vr = T.axis.spatial(ROWS, r)
                vt = T.axis.scan(LENGTH, t)
                total[vr] = total[vr] + T.Cast("float32", X[vr, vt])
                Y[vr, vt] = T.Cast("float16", total[vr])


def test_the_example_of_the_writer_is_the_loop_of_a_script():
    """Casts, and what blocks access, included."""
    text = inspect.getdoc(writer).partition("::\n")[2].partition("\n\nWhat")[0]
    scope = {"Loop": writer.Loop}
    exec("def written(rows, length):\n" + text, scope)
    written = scope["written"](ROWS, LENGTH)
    assert tvm_ffi.structural_equal(written, row_sums)


@pytest.mark.parametrize("sides", [(2, 3), (None, 3), (2, None), (None, None)], ids=str)
@pytest.mark.parametrize("time_last", [False, True])
@pytest.mark.parametrize("name", ["affine", "cumulative", "extremum", "logcumsumexp"])
def test_sides_of_a_frame_may_be_left_out(name, time_last, sides):
    options = {
        "affine": {"emit": "late", "has_initial": True, "has_reset": True},
        "cumulative": {"op": "mul", "exclusive": True},
        "extremum": {"smallest": True},
        "logcumsumexp": {},
    }[name]
    outer, inner = (n if n is None else make_extent(name, "side", n) for n in sides)
    length = tirx.Var("length", "int64")
    loop = getattr(loops, name)(
        outer, inner, length, dtype="float32", time_last=time_last, reverse=True, **options
    )
    lanes = [n for n in sides if n is not None]
    at = len(lanes) if time_last else sides[0] is not None
    assert len(loop.params[0].ty.shape) == len(lanes) + 1
    assert loop.params[0].ty.shape[int(at)].same_as(length)
    found = extract(loop)
    assert isinstance(found, Recurrence), found


def test_a_loop_that_fails_is_none():
    """An error inside leaves no open builder behind."""
    loop = writer.Loop()

    def fail():
        with loop:
            loop.array("X", (3,), "float32")
            raise RuntimeError("half a loop")

    with pytest.raises(RuntimeError, match="half a loop"):
        fail()
    assert not hasattr(loop, "func")
    loops.cumulative(
        *(make_extent("x", "n", n) for n in (2, 3, 4)), dtype="int32", op="add", exclusive=False
    )


@pytest.mark.parametrize(
    ("name", "read", "written"),
    [("delta_walk", "k q v", "y"), ("delta_adjoint", "g_y k known q v", "g_k g_q g_v")],
)
def test_delta_rules_ask_for_the_lines_of_later_steps(name, read, written):
    """Inside the arrays; queries that are normalised once are asked for where that is done."""
    extents = (tirx.Var(n, "int64") for n in ("batch", "heads", "length"))
    options = {"keys": 32, "values": 16, "dtype": "float32", "rule": "delta", "gate": "head"}
    text = getattr(loops, name)(*extents, **options, reads="q: unit, times scale; w: exp").script()
    asked = re.findall(r"prefetch\(T.address_of\((\w+)\[(.*)\]\), (\d)", text)
    for is_written, names in enumerate((read, written)):
        found = {array for array, _, kind in asked if int(kind) == is_written}
        assert found == set(names.split())
    assert all("T.min" in index and "length - T.int64(1)" in index for _, index, _ in asked)


def test_a_state_walks_in_a_place_of_its_own():
    """Rows that lie apart would share sets of the first cache, and heads disturb one another."""
    extents = [tirx.Var(n, "int64") for n in ("batch", "heads", "length")]
    options = {"keys": 32, "values": 32, "dtype": "float32", "rule": "delta", "gate": "none"}
    for columns in (32, 16):
        text = loops.delta_walk(*extents, **options, columns=columns).script()
        assert "state = T.alloc_buffer" in text
