"""Integers that wrap at the width of their dtype, on every device.

In TensorIR an integer of n bits is a number modulo ``2^n``. The code that TVM makes of it is not:

* LLVM is told that sums, differences and products of 32 and 64 bits never wrap, signed or not.
  What wraps is poison, and constants fold to it.
* C computes 8 and 16 bits in ``int``, so that nothing wraps before it is stored, and leaves signed
  overflow undefined.
* WGSL and SPIR-V wrap.

An element overflows where no step of the loop does: powers of a gate, a sum of steps that starts
from no carry. So all kernels of scans compute values in a dtype that holds the exact result, and
narrow it, which LLVM and nvcc turn into the one instruction that wraps.

Arithmetic of indices stays as it is, as far as it is signed and of 32 or 64 bits: addresses do not
overflow, and what reads memory along a line must look like it.
"""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir

_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.LShift)


class Overflow(Enum):
    """Integers that overflow, in the language of a device.

    Attributes
    ----------
    C
        8 and 16 bits are computed in ``int``; signed ones of 32 and 64 are undefined.
    LLVM
        Those of 32 and 64 bits are poison, signed or not.
    WRAPS
        All wrap, as in TensorIR.
    """

    C = "c"
    LLVM = "llvm"
    WRAPS = "wraps"


def with_wrapping(stmt: Any, overflow: Overflow, *, signed: bool = False) -> Any:
    """Let the integers of a kernel wrap.

    Parameters
    ----------
    stmt : Stmt
        A nest.
    overflow : Overflow
        What the device's language makes of integers that overflow.
    signed : bool
        Whether signed integers of 32 and 64 bits wrap, too, as those of elements must. Where those
        of a loop as it was written overflow, TVM leaves it undefined.

    Returns
    -------
    Stmt
        The same object if nothing had to change.
    """
    in_c = overflow is Overflow.C
    if overflow is Overflow.WRAPS or not (signed or _has_others(stmt, in_c=in_c)):
        return stmt
    stored = tir.VarMap()
    for bind in tir.nodes(stmt, tirx.Bind):
        if tir.loads(bind.value) or tir.contains_var(bind.value, stored.keys()):
            stored[bind.var] = True

    def value(expr: Any) -> Any:
        return _wrapped(expr, stored, in_c=in_c, signed=signed)

    def index(expr: Any) -> Any:
        return _wrapped(expr, stored, in_c=in_c, signed=False)

    def on_bind(bind: tirx.Bind) -> Any:
        wrapped = value(bind.value)
        return bind if wrapped.same_as(bind.value) else tirx.Bind(bind.var, wrapped)

    def on_store(store: tirx.BufferStore) -> Any:
        old = [store.value, *store.indices]
        new = [value(store.value), *map(index, store.indices)]
        if all(x.same_as(y) for x, y in zip(old, new, strict=True)):
            return store
        return tirx.BufferStore(store.buffer, new[0], new[1:])

    def on_if(branch: tirx.IfThenElse) -> Any:
        condition = value(branch.condition)
        if condition.same_as(branch.condition):
            return branch
        return tirx.IfThenElse(condition, branch.then_case, branch.else_case)

    return tvm_ffi.structural_map(
        stmt, [(tirx.Bind, on_bind), (tirx.BufferStore, on_store), (tirx.IfThenElse, on_if)]
    )


def _has_others(stmt: Any, *, in_c: bool) -> bool:
    """Return whether integers wrap in an operator that do otherwise on the device.

    Most kernels have signed indices and floats alone, which one visit of each operator shows.
    """

    def on_operator(e: Any) -> Any:
        return tvm_ffi.VisitInterrupt(e) if _is_other(tir.dtype_of(e), in_c) else None

    kinds = (*_BINARY, tirx.BitwiseNot)
    return tvm_ffi.structural_walk(stmt, [(kinds, on_operator)]) is not None


@functools.cache
def _bits(dtype: str) -> tuple[bool, int] | None:
    """Return whether integers of a dtype are unsigned, and how wide they are; None of others."""
    base, _, _ = dtype.partition("x")
    width = base.lstrip("u").removeprefix("int")
    return (base.startswith("u"), int(width)) if width.isdigit() else None


@functools.cache
def _is_other(dtype: str, in_c: bool) -> bool:
    """Return whether integers of a dtype wrap as in TensorIR, but not on the device.

    Signed ones of 32 and 64 bits are left to whoever knows whether elements are made of them.
    """
    bits = _bits(dtype)
    if bits is None:
        return False
    unsigned, width = bits
    return in_c if width < 32 else unsigned and not in_c


def _wrapped(expr: Any, stored: tir.VarMap, *, in_c: bool, signed: bool) -> Any:
    """An expression whose integers wrap, the signed ones of 32 and 64 bits if they are wanted."""
    if tir.is_leaf(expr):
        return expr
    loads, known, changed = tir.VarMap(), stored.copy(), []

    def on_load(load: Any) -> Any:
        # What stands for a load hides its indices from what is done to values.
        indices = [_wrapped(i, known, in_c=in_c, signed=False) for i in load.indices]
        if not all(i.same_as(j) for i, j in zip(indices, load.indices, strict=True)):
            load = tirx.BufferLoad(load.source, indices)
            changed.append(load)
        var = Var("stored", load.ty)
        loads[var], known[var] = tir.substitute(load, loads), True
        return var

    def on_operator(e: Any) -> Any:
        dtype = tir.dtype_of(e)
        bits = _bits(dtype)
        if bits is None or all(tir.as_int(part) is not None for part in _operands(e)):
            return e
        unsigned, width = bits
        of_elements = signed and not unsigned and width >= 32
        if not _is_other(dtype, in_c) and not (of_elements and tir.contains_var(e, known.keys())):
            return e
        if width >= 32 and isinstance(e, tirx.LShift | tirx.BitwiseNot):
            return e
        if width == 64 and in_c:
            return _as_unsigned(e)
        base, _, lanes = dtype.partition("x")
        return _exact(e, base, width, lanes, in_c=in_c)

    bare = tir.map_loads(expr, on_load)
    wrapped = tvm_ffi.structural_map(
        bare, [(kind, on_operator) for kind in (*_BINARY, tirx.BitwiseNot)]
    )
    return expr if wrapped.same_as(bare) and not changed else tir.substitute(wrapped, loads)


def _exact(e: Any, base: str, bits: int, lanes: str, *, in_c: bool) -> Any:
    """The operator in a dtype that holds its exact result, narrowed to what it wraps to."""
    unsigned = base.startswith("uint")
    # A difference of unsigned integers is negative, a product needs all bits.
    kind = "int" if isinstance(e, tirx.Sub) or not unsigned else "uint"
    width = max(32, 2 * bits)
    if bits == 32 and not (in_c or lanes):
        # Where a register of 64 bits exists LLVM keeps the carry in one and narrows it at every
        # step (sums of 12 rows of 2431 numbers take a Zen 4 9.0 us, and 4.6 in one of 32).
        width = 128
    wide = f"{kind}{width}x{lanes}" if lanes else f"{kind}{width}"
    if unsigned and kind == "int" and bits == 64:
        return _difference(e, lanes)
    exact = type(e)(*(tirx.Cast(wide, part) for part in _operands(e)))
    if unsigned:
        # TVM folds no constant to an unsigned dtype that does not hold it.
        exact = tirx.bitwise_and(exact, _of_lanes((1 << bits) - 1, f"{kind}{width}", lanes))
    return tirx.Cast(tir.dtype_of(e), exact)


def _difference(e: Any, lanes: str) -> Any:
    """``a - b`` of 64 bits as ``a + ~b + 1``: no constant of int128 is larger than 63 bits."""
    wide = f"uint128x{lanes}" if lanes else "uint128"
    ones = _of_lanes((1 << 64) - 1, "uint128", lanes)
    a, b = (tirx.Cast(wide, part) for part in _operands(e))
    difference = a + tirx.bitwise_xor(b, ones) + _of_lanes(1, "uint128", lanes)
    return tirx.Cast(tir.dtype_of(e), tirx.bitwise_and(difference, ones))


def _of_lanes(value: int, base: str, lanes: str) -> Any:
    scalar = tirx.const(value, base)
    return tirx.Broadcast(scalar, int(lanes)) if lanes else scalar


def _as_unsigned(e: Any) -> Any:
    """The operator on the same bits as unsigned integers, which wrap in C."""

    def unsigned(part: Any) -> Any:
        known = tir.as_int(part)
        if known is None:
            return tirx.reinterpret("uint64", part)
        return tirx.const(known % (1 << 64), "uint64")

    return tirx.reinterpret("int64", type(e)(*map(unsigned, _operands(e))))


def _operands(e: Any) -> tuple[Any, ...]:
    return (e.a,) if isinstance(e, tirx.BitwiseNot) else (e.a, e.b)
