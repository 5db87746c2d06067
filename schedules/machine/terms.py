"""Kernels in the terms of a device: what it has not, or TVM has no code for there, is replaced.

* Integers wrap as in TensorIR, see ``common.wrapping``.
* On a CPU, named integers that are data are in registers, see ``common.data_names``.
* Where the threads of a warp cannot wait for one another alone, all threads of the block do.
* Where they cannot vote on a condition, ``checked`` work is done with care at once.
* Where an instruction multiplies and adds two numbers at once, two steps of a walk do: ``pairs``.
* TVM 0.27 writes an infinity as ``inff`` in WGSL, and NaN as ``nanf``, which has no words for them,
  and rejects constant expressions that make one; it writes the least int32 as the negative of a
  number that is none. There they are what the bits are that a register holds.
* TVM works out a maximum or minimum of a written NaN and a number as C++ does, which is not what
  the device's own does. A NaN is what its bits are, of which TVM works out nothing.
* A function that TVM has no rule for is called by its name in C. On other devices it is computed
  from functions that are there, or refused.
"""

from __future__ import annotations

from functools import lru_cache
from math import isinf, isnan
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, Var
from tvm.s_tir import SBlock
from tvm.script import tirx as T

from tvm_scan import tir
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.schedules.common.data_names import with_data_in_registers
from tvm_scan.schedules.common.ir import int_const, local, with_llvm
from tvm_scan.schedules.common.wrapping import Overflow, with_wrapping
from tvm_scan.schedules.machine.device import Device
from tvm_scan.schedules.machine.pairs import in_pairs

_WARP_BARRIER = "tirx.cuda.warp_sync"
_CHECKED, _CAREFUL = "tvm_scan.checked", "tvm_scan.careful"
_APART = "tvm_scan.apart"
_ALL = """
__forceinline__ __device__ int scan_all(int holds) {
  return __all_sync(0xffffffffu, holds);
}
"""
#: Bits of an infinity in float32, and of its sign, which are those of the least int32, too.
_INFINITY, _SIGN = 0x7F800000, 1 << 31
#: Bits of a quiet NaN.
_NAN = {
    "float16": (0x7E00, "uint16"),
    "float32": (0x7FC00000, "uint32"),
    "float64": (0x7FF8 << 48, "uint64"),
}


#: No instruction, but none that LLVM repeats in vectors, nor moves accesses across: it would take
#: rows whose steps are written out as cells of vectors, and gather every one of them (4 to 7 times
#: as long on a Zen 4).
_NO_VECTORS = """
define i32 @tvm_scan_apart() alwaysinline {
  call void asm sideeffect "", "~{memory}"()
  ret i32 0
}
"""


def block_barrier() -> Any:
    """Return the statement by which all threads of a block wait for one another."""
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", "shared"))


def warp_barrier() -> Any:
    """Return the statement by which all threads of a warp do."""
    return tirx.Evaluate(tirx.call_intrin("", _WARP_BARRIER))


def all_of_warp(condition: Any) -> Any:
    """Return 1 where a condition holds in all 32 threads of a warp, which all ask, and else 0."""
    holds = tirx.Select(condition, int_const(1, "int32"), int_const(0, "int32"))
    return T.cuda.func_call("scan_all", holds, source_code=_ALL, return_type="int32")


def checked(fast: Any, intact: Any, careful: Any) -> Any:
    """Work that is done again, with care, by a warp in which a thread's results are not intact.

    Parameters
    ----------
    fast, careful : Stmt
        The two ways; both need nothing but what was there before.
    intact : Expr
        What holds after ``fast`` where that did what ``careful`` does.
    """
    mark = int_const(1, "int32")
    again = tirx.AttrStmt(mark, _CAREFUL, mark, careful)
    damaged = tirx.EQ(all_of_warp(intact), int_const(0, "int32"))
    body = tir.seq([fast, tirx.IfThenElse(damaged, again, None)])
    return tirx.AttrStmt(mark, _CHECKED, mark, body)


def apart(stmt: Any) -> Any:
    """Return a statement that the compiler leaves apart from what follows, itself included."""
    mark = int_const(1, "int32")
    return tirx.AttrStmt(mark, _APART, mark, stmt)


def in_terms_of(device: Device, nest: Any, *, signed: bool = False) -> Any:
    """Write a nest over one block in the terms of a device.

    Parameters
    ----------
    device : Device
        Where it will run.
    nest : Stmt
        A loop nest over one block.
    signed : bool
        See ``with_wrapping``.

    Returns
    -------
    Stmt
        The same object if nothing had to change.
    """
    nest = with_wrapping(nest, device.overflow, signed=signed)
    if not device.is_gpu:
        nest = with_data_in_registers(nest)
    if device.is_gpu and not device.warp_barrier:
        nest = _with_block_barriers(nest)
    nest = tvm_ffi.structural_map(nest, (tirx.AttrStmt, lambda a: _chosen(a, device)))
    if device.is_gpu:
        nest = in_pairs(nest, has_pairs=device.pairs)
    if not device.c_functions:
        nest = tvm_ffi.structural_map(nest, (Call, lambda call: _by_others(call, device)))
    if not device.extremes:
        return _without_extremes(nest)
    return tvm_ffi.structural_map(nest, (tirx.FloatImm, _nan_by_its_bits))


@lru_cache(maxsize=64)
def missing_functions(device: Device, recurrence: TimeLoop) -> tuple[str, ...]:
    """Return the functions of a recurrence that a device cannot be made to compute.

    Parameters
    ----------
    device : Device
        Where it will run.
    recurrence : Recurrence or DeltaRule
        What would run.

    Returns
    -------
    tuple of str
        Names, as TensorIR has them.
    """
    if device.c_functions:
        return ()
    names: dict[str, None] = {}

    def on_call(call: Call) -> None:
        name = tir.call_name(call) or ""
        if name not in _BY_OTHERS and _is_called_as_in_c(name, device.language):
            names[name.partition(".")[2]] = None

    for part in recurrence.parts:
        if part is not None:
            tvm_ffi.structural_walk(part, [(Call, on_call)])
    return tuple(names)


#: Terms of the series of ``atanh(s) / s`` for s up to 1/3: what is left out is below 2^-29.
_TERMS = 8


def _log1p(x: Any) -> Any:
    """``log(1 + x)`` without the loss of what the sum rounds off, where that counts.

    For s = x / (2 + x), log(1 + x) = 2 atanh(s) = 2 s (1 + s^2 / 3 + s^4 / 5 + ..), which for x
    from -1/2 to 1 converges like 9^-k. Below, the sum is exact; above, what it loses is lost in the
    logarithm anyway.
    """
    dtype = tir.dtype_of(x)

    def const(value: float) -> Any:
        return tirx.const(value, dtype)

    # Names, since each is used several times.
    a, s, z = (tirx.Var(name, dtype) for name in ("a", "s", "z"))
    series = const(1 / (2 * _TERMS - 1))
    for term in reversed(range(_TERMS - 1)):
        series = series * z + const(1 / (2 * term + 1))
    near = tirx.And(a > const(-0.5), a < const(1))
    value = tirx.Select(near, const(2) * s * series, tirx.log(const(1) + a))
    return tirx.Let(a, x, tirx.Let(s, a / (const(2) + a), tirx.Let(z, s * s, value)))


_BY_OTHERS = {"tirx.log1p": _log1p}


def _by_others(call: Call, device: Device) -> Any:
    name = tir.call_name(call) or ""
    if name not in _BY_OTHERS or not _is_called_as_in_c(name, device.language):
        return call
    return _BY_OTHERS[name](*call.args)


@lru_cache(maxsize=256)
def _is_called_as_in_c(name: str, kind: str) -> bool:
    """Return whether TVM has a rule for a function on every device, but none for this kind."""
    return _has_rule(name, "default") and not _has_rule(name, kind)


def _has_rule(name: str, kind: str) -> bool:
    if not name.startswith("tirx."):
        return False
    try:
        return Op.get(name).get_attr(f"{kind}.FLowerIntrinsic") is not None
    except RuntimeError:  # no function has a rule of this kind
        return False


def _chosen(attribute: tirx.AttrStmt, device: Device) -> Any:
    """``checked`` work without its marks, or the careful way alone; ``apart`` in LLVM's terms."""
    if attribute.attr_key == _APART:
        if device.overflow is not Overflow.LLVM:
            return attribute.body
        call = tirx.Evaluate(tirx.call_extern("int32", "tvm_scan_apart"))
        return with_llvm(tir.seq([attribute.body, call]), _NO_VECTORS)
    if attribute.attr_key != _CHECKED:
        return attribute
    careful: list[Any] = []

    def on_attribute(inner: tirx.AttrStmt) -> Any:
        if inner.attr_key != _CAREFUL:
            return inner
        careful.append(inner.body)
        return inner.body

    body = tvm_ffi.structural_map(attribute.body, (tirx.AttrStmt, on_attribute))
    return body if device.votes else careful[0]


def _with_block_barriers(nest: Any) -> Any:
    def on_statement(stmt: tirx.Evaluate) -> Any:
        return block_barrier() if tir.call_name(stmt.value) == _WARP_BARRIER else stmt

    return tvm_ffi.structural_map(nest, (tirx.Evaluate, on_statement))


def _nan_by_its_bits(value: tirx.FloatImm) -> Any:
    dtype = tir.dtype_of(value)
    if dtype not in _NAN or not isnan(float(value.value)):
        return value
    bits, word = _NAN[dtype]
    return tirx.reinterpret(dtype, tirx.IntImm(word, bits))


def _without_extremes(nest: Any) -> Any:
    def on_block(block: SBlock) -> Any:
        registers: dict[int, Var] = {}
        body = block.body
        for kind in (tirx.FloatImm, tirx.IntImm):
            body = tvm_ffi.structural_map(body, (kind, lambda e: _from_register(e, registers)))
        if not registers:
            return block
        stores = [
            tirx.BufferStore(register, tirx.const(bits, "uint32"), [int_const(0, "int32")])
            for bits, register in registers.items()
        ]
        allocs = [*block.alloc_buffers, *registers.values()]
        return tir.block_with(block, body=tir.seq([*stores, body]), alloc_buffers=allocs)

    return tvm_ffi.structural_map(nest, (SBlock, on_block))


def _from_register(value: tirx.FloatImm | tirx.IntImm, registers: dict[int, Var]) -> Any:
    dtype = tir.dtype_of(value)
    if isinstance(value, tirx.IntImm):
        if dtype != "int32" or int(value.value) != -_SIGN:
            return value
        bits, wide = _SIGN, "int32"
    else:
        number, wide = float(value.value), "float32"
        if isnan(number):
            bits, _ = _NAN[wide]
        elif isinf(number):
            bits = _INFINITY | _SIGN if number < 0 else _INFINITY
        else:
            return value
    if bits not in registers:
        registers[bits] = local(f"extreme{len(registers)}", [1], "uint32")
    load = tirx.BufferLoad(registers[bits], [int_const(0, "int32")])
    value = tirx.reinterpret(wide, load)
    return value if dtype == wide else tirx.Cast(dtype, value)
