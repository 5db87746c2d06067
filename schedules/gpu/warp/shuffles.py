"""Shuffles: values of other threads of a warp, and which dtypes can be sent."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_scan import tir
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.ir import int_const
from tvm_scan.schedules.common.sizes import element_parts
from tvm_scan.schedules.gpu.thread.banks import WARP

#: Kinds of shuffles of the tree.
SHUFFLES = ("", "_up")
_ALL = 0xFFFFFFFF
_WORDS = ("int32", "uint32", "int64", "uint64", "float32", "float64")


def can_shuffle(dtype: str) -> bool:
    """Return whether ``shuffled`` takes a value: 32 or 64 bits, or a smaller integer."""
    return dtype in _WORDS or dtype.startswith(("bool", "int8", "int16", "uint8", "uint16"))


def takes_warp_tree(recurrence: Recurrence, bits: int) -> bool:
    """Return whether every part of the elements can be shuffled, in words of so many bits."""
    return all(
        can_shuffle(dtype) and 8 * tir.byte_size(dtype) <= bits
        for _, dtype in element_parts(recurrence)
    )


def word_of(dtype: str) -> str:
    """Return the dtype in which a value is sent: a half is the float32 that it is."""
    return dtype if dtype in _WORDS else "float32" if tir.is_half(dtype) else "int32"


def shuffled(kind: str, value: Any, other: Any, width: int = WARP) -> Any:
    """``value`` of another of 32 threads of a warp; all of them must take part.

    Parameters
    ----------
    kind : {"", "_up", "_xor"}
        Whether ``other`` is the number of the thread within ``width``, how far below it is, or
        what its number differs by.
    value : Expr
        Of a dtype that ``can_shuffle``, or a half.
    other : Expr or int
        Which thread.
    width : int
        Threads of a group; groups do not see each other.
    """
    dtype = tir.dtype_of(value)
    word = word_of(dtype)
    moved = tirx.call_intrin(
        word,
        f"tirx.tvm_warp_shuffle{kind}",
        tirx.IntImm("uint32", _ALL),
        value if word == dtype else tirx.Cast(word, value),
        int_const(other, "int32") if isinstance(other, int) else other,
        int_const(width, "int32"),
        int_const(WARP, "int32"),
    )
    return moved if word == dtype else tirx.Cast(dtype, moved)
