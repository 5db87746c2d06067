"""Integers of kernels wrap as TensorIR means them, whatever LLVM and C make of an overflow."""

import itertools
import operator

import pytest
from tvm import tirx

from tests.support.machines import Undefined, on_machine
from tvm_scan import tir
from tvm_scan.schedules.common.wrapping import Overflow, with_wrapping

#: What the language of a device makes of overflow.
OVERFLOW = {"cpu": Overflow.LLVM, "cuda": Overflow.C}
DTYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]


def limits(dtype):
    low, high = int(tirx.min_value(dtype).value), int(tirx.max_value(dtype).value)
    return sorted({low, low + 1, 0, 1, 3, high // 3, high // 2, high // 2 + 1, high - 1, high})


def stored(make, dtype, device, *, signed=True):
    """The value that ``buffer[0] = make(a, b, c)`` stores, a and b loads, and its variables."""
    a, b = (tirx.decl_buffer([1], dtype, name, layout=None) for name in "ab")
    zero = tirx.IntImm("int32", 0)
    inputs = [tirx.BufferLoad(buffer, [zero]) for buffer in (a, b)]
    store = tirx.BufferStore(a, make(*inputs), [zero])
    value = with_wrapping(store, OVERFLOW[device], signed=signed).value
    return tir.map_loads(value, lambda load: tirx.Var(load.source.name, dtype))


def const(value, like):
    return tirx.const(value, tir.dtype_of(like))


EXPRESSIONS = {
    "sum": operator.add,
    "difference": operator.sub,
    "product": operator.mul,
    "step": lambda a, b: a * b + a,
    "nested": lambda a, b: (a + b) * (a - b) - b * b,
    "remainder": lambda a, b: tirx.floormod(a * b + a, const(97, a)),
    "bound": lambda a, b: tirx.Max(a + b, b),
    "comparison": lambda a, b: tirx.Select(a + b > a, a, b),
    "constants": lambda a, b: a * const(113, a) - const(7, a),
    "complement": lambda a, b: tirx.bitwise_xor(tirx.floormod(~a, const(5, a)), b),
    "shifted": lambda a, b: tirx.floormod(a << const(3, a), const(5, a)) + b,
}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_wrap(dtype, device):
    for make in EXPRESSIONS.values():
        plain = make(tirx.Var("a", dtype), tirx.Var("b", dtype))
        made = stored(make, dtype, device)
        for a, b in itertools.product(limits(dtype), repeat=2):
            values = {"a": a, "b": b}
            want = on_machine(plain, values, "tir")
            assert on_machine(made, values, device) == want, (values, plain, made)


@pytest.mark.parametrize(
    ("dtype", "device"),
    [("uint32", "cpu"), ("int64", "cpu"), ("int8", "cuda"), ("uint16", "cuda"), ("int32", "cuda")],
)
def test_without_it_they_do_not(dtype, device):
    plain = EXPRESSIONS["remainder"](tirx.Var("a", dtype), tirx.Var("b", dtype))
    high = limits(dtype)[-1]
    try:
        found = on_machine(plain, {"a": high, "b": high}, device)
    except Undefined:
        return
    assert found != on_machine(plain, {"a": high, "b": high}, "tir")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_signed_indices_stay(device):
    """What is read along a line looks like it: starts of rows come from memory."""
    starts = tirx.decl_buffer([8], "int32", "starts", layout=None)
    x = tirx.decl_buffer([64], "int32", "x", layout=None)
    t = tirx.Var("t", "int32")
    index = tirx.BufferLoad(starts, [t + 1]) + t
    store = tirx.BufferStore(x, tirx.BufferLoad(x, [index]), [index * 2])
    assert with_wrapping(store, OVERFLOW[device], signed=True).same_as(store)


def test_what_has_no_integers_is_the_same_object():
    x = tirx.decl_buffer([64], "float32", "x", layout=None)
    t = tirx.Var("t", "int32")
    store = tirx.BufferStore(x, tirx.BufferLoad(x, [t + 1]) * tirx.BufferLoad(x, [t]), [t])
    made = tirx.For(t, 0, 63, tirx.ForKind.SERIAL, store)
    assert with_wrapping(made, Overflow.LLVM, signed=True).same_as(made)


def test_bound_names_are_values():
    """An element whose parts depend on each other in a circle has names for them."""
    x = tirx.decl_buffer([1], "int32", "x", layout=None)
    load, name = tirx.BufferLoad(x, [tirx.IntImm("int32", 0)]), tirx.Var("e", "int32")
    store = tirx.BufferStore(x, name * name, [tirx.IntImm("int32", 0)])
    made = with_wrapping(
        tirx.SeqStmt([tirx.Bind(name, load + load), store]), Overflow.LLVM, signed=True
    )
    high = limits("int32")[-1]
    assert on_machine(made.seq[1].value, {"e": high}, "cpu") == 1
