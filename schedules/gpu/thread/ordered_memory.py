"""Words of memory with an order, which blocks of one kernel hand to each other.

Data is stored relaxed and then announced by a flag that is stored with release; who reads the
flag with acquire, until it is set, sees the data. Both are PTX instructions at device scope, by
TVM's own intrinsics. Values of less than 32 bits take a word of 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.script import tirx as T

from tvm_scan import tir
from tvm_scan.schedules.common.ir import as_dtype, int_const, local

_SUFFIX = {
    "int32": "s32",
    "uint32": "u32",
    "int64": "s64",
    "uint64": "u64",
    "float32": "f32",
    "float64": "f64",
}
_SMALL = ("bool", "int8", "int16", "uint8", "uint16")
#: Nanoseconds between two looks at a flag.
_PAUSE = 20


def is_word(dtype: str) -> bool:
    """Return whether values of a dtype can be handed over: 32 or 64 bits, or smaller integers."""
    return dtype in _SUFFIX or dtype in _SMALL


def word_of(dtype: str) -> str:
    """The dtype in memory of a value that ``is_word``."""
    return dtype if dtype in _SUFFIX else "int32"


def _address(buffer: Var, index: Sequence[Any]) -> Any:
    """Pointer to a cell. TVM takes it for a use of the whole buffer, as it must.

    From an index that a register holds, it would infer that few cells are used, and allocate
    no more.
    """
    shape = tir.shape_of(buffer)
    offset = index[0]
    for extent, i in zip(shape[1:], index[1:], strict=True):
        dtype = tir.dtype_of(offset)
        offset = offset * as_dtype(extent, dtype) + as_dtype(i, dtype)
    return buffer.access_ptr("rw", offset=offset, extent=1)


def _load(order: str, into: Any, buffer: Var, index: Sequence[Any]) -> Any:
    kind = getattr(getattr(T.ptx.ld, order).gpu.global_, _SUFFIX[tir.dtype_of(buffer)])
    return tirx.Evaluate(kind(into, _address(buffer, index)))


def _store(order: str, buffer: Var, index: Sequence[Any], value: Any) -> Any:
    kind = getattr(getattr(T.ptx.st, order).gpu.global_, _SUFFIX[tir.dtype_of(buffer)])
    return tirx.Evaluate(kind(_address(buffer, index), value))


def put_word(buffer: Var, index: Sequence[Any], value: Any) -> Any:
    """``buffer[index] = value`` for others to read, once it is announced."""
    word = tir.dtype_of(buffer)
    value = value if tir.dtype_of(value) == word else tirx.Cast(word, value)
    return _store("relaxed", buffer, index, value)


def get_word(target: Var, cell: Sequence[Any], buffer: Var, index: Sequence[Any]) -> Any:
    """``target[cell] = buffer[index]``, which another block has announced; into registers."""
    word, dtype = tir.dtype_of(buffer), tir.dtype_of(target)
    if word == dtype:
        return _load("relaxed", tirx.BufferLoad(target, list(cell)), buffer, index)
    # The registers hold what was there before: it is written over.
    through = local("word", [1], word)
    zero = int_const(0, "int32")
    read = _load("relaxed", tirx.BufferLoad(through, [zero]), buffer, index)
    value = tirx.Cast(dtype, tirx.BufferLoad(through, [zero]))
    return tir.seq([tirx.AllocBuffer(through), read, tirx.BufferStore(target, value, list(cell))])


def announce(flags: Var, index: Sequence[Any]) -> Any:
    """Set a flag: what this thread put before it can be read by who waits for the flag."""
    return _store("release", flags, index, int_const(1, "int32"))


def await_flag(flag: Var, flags: Var, index: Sequence[Any]) -> Any:
    """Wait until ``flags[index]`` is set; ``flag`` is a register of one int32."""
    zero = int_const(0, "int32")
    seen = tirx.BufferLoad(flag, [zero])
    unset = tirx.EQ(seen, zero)
    pause = tirx.IfThenElse(unset, tirx.Evaluate(T.cuda.nano_sleep(_PAUSE)), None)
    look = _load("acquire", seen, flags, index)
    return tir.seq(
        [tirx.BufferStore(flag, zero, [zero]), tirx.While(unset, tir.seq([look, pause]))]
    )


def take_ticket(counter: Var) -> Any:
    """The next number of a counter that all blocks share: an int32."""
    zero = int_const(0, "int32")
    return T.cuda.atomic_add(_address(counter, [zero]), int_const(1, "int32"))
