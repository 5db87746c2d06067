"""Values that blocks of one kernel hand to each other, in words that say when they are there.

A word has 64 bits: 32 of a value, and above them a mark, 0 until the value is there. Both are
stored at once and loaded at once, so that a reader who sees the mark has the value: nobody needs a
fence, which waits for all that a thread has stored, nor an acquiring load, which empties the
first-level cache of a multiprocessor. A value of 64 bits takes two words, one of fewer than 32 a
word of its own. The instructions are PTX at device scope, by TVM's own intrinsics; relaxed, but for
marks that put other memory into an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.script import tirx as T

from tvm_scan import tir
from tvm_scan.schedules.common.ir import as_dtype, int_const, local

#: The dtype of a word, and the mark in it.
WORD = "uint64"
_MARK = 1 << 32
_WIDE = ("int64", "uint64", "float64")
_PLAIN = ("int32", "uint32", "float32")
_SMALL = ("bool", "int8", "int16", "uint8", "uint16")
#: Nanoseconds between two looks at words.
_PAUSE = 20
_ZERO = int_const(0, "int32")


def is_word(dtype: str) -> bool:
    """Return whether values of a dtype can be handed over: 32 or 64 bits, or smaller integers."""
    return dtype in (*_WIDE, *_PLAIN, *_SMALL)


def words_of(dtype: str) -> int:
    """Number of words of a value, of a dtype that ``is_word``."""
    return 2 if dtype in _WIDE else 1


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


def put(buffer: Var, index: Sequence[Any], value: Any) -> Any:
    """``buffer[index] = value`` for other blocks: of words, along the last dimension."""
    dtype = tir.dtype_of(value)
    if dtype in _WIDE:
        bits = value if dtype == WORD else tirx.reinterpret(WORD, value)
        low = tirx.bitwise_and(bits, _bits(_MARK - 1))
        halves = [low, tirx.shift_right(bits, _bits(32))]
    else:
        value = tirx.Cast("int32", value) if dtype in _SMALL else value
        value = value if dtype == "uint32" else tirx.reinterpret("uint32", value)
        halves = [tirx.Cast(WORD, value)]
    return tir.seq(
        _store("relaxed", buffer, [*index, int_const(i, "int32")], half)
        for i, half in enumerate(halves)
    )


def announce(buffer: Var, index: Sequence[Any]) -> Any:
    """Store a mark alone: who acquires it comes after all that this thread did before."""
    return _store("release", buffer, index, _bits(0))


def _store(order: str, buffer: Var, index: Sequence[Any], half: Any) -> Any:
    store = getattr(T.ptx.st, order).gpu.global_.u64
    word = tirx.bitwise_or(half, _bits(_MARK))
    return tirx.Evaluate(store(_address(buffer, index), word))


@dataclass(frozen=True)
class Reader:
    """Registers of a thread that reads words of other blocks: one for a word, one for the marks."""

    word: Var = field(default_factory=lambda: local("word", [1], WORD))
    seen: Var = field(default_factory=lambda: local("seen", [1], "int32"))

    @property
    def buffers(self) -> list[Var]:
        """Both registers."""
        return [self.word, self.seen]

    @property
    def _word(self) -> Any:
        return tirx.BufferLoad(self.word, [_ZERO])

    @property
    def _seen(self) -> Any:
        return tirx.BufferLoad(self.seen, [_ZERO])

    def look(self, buffer: Var, index: Sequence[Any], order: str = "relaxed") -> Any:
        """Load one word, and see whether it is there."""
        load = getattr(T.ptx.ld, order).gpu.global_.u64
        high = tirx.Cast("int32", tirx.shift_right(self._word, _bits(32)))
        both = tirx.BufferStore(self.seen, tirx.bitwise_and(self._seen, high), [_ZERO])
        return tir.seq([tirx.Evaluate(load(self._word, _address(buffer, index))), both])

    def get(self, target: Var, cell: Sequence[Any], buffer: Var, index: Sequence[Any]) -> Any:
        """``target[cell] = buffer[index]``, whatever it holds, and whether that is a value."""
        dtype = tir.dtype_of(target)
        looks = [self.look(buffer, [*index, int_const(i, "int32")]) for i in range(words_of(dtype))]
        low = tirx.bitwise_and(self._word, _bits(_MARK - 1))
        if dtype not in _WIDE:
            value = tirx.Cast("uint32", low)
            plain = "int32" if dtype in _SMALL else dtype
            value = value if plain == "uint32" else tirx.reinterpret(plain, value)
            value = tirx.Cast(dtype, value) if dtype in _SMALL else value
            return tir.seq([*looks, tirx.BufferStore(target, value, list(cell))])
        half = local("half", [1], WORD)
        high = tirx.shift_left(self._word, _bits(32))
        bits = tirx.bitwise_or(tirx.BufferLoad(half, [_ZERO]), high)
        value = bits if dtype == WORD else tirx.reinterpret(dtype, bits)
        keep = tirx.BufferStore(half, low, [_ZERO])
        store = tirx.BufferStore(target, value, list(cell))
        return tir.seq([tirx.AllocBuffer(half), looks[0], keep, looks[1], store])

    def wait(self, looks: Any) -> Any:
        """Repeat what ``look`` and ``get`` returned until all of it is there."""
        unseen = tirx.EQ(self._seen, _ZERO)
        pause = tirx.IfThenElse(unseen, tirx.Evaluate(T.cuda.nano_sleep(_PAUSE)), None)
        begin = tirx.BufferStore(self.seen, int_const(1, "int32"), [_ZERO])
        again = tirx.While(unseen, tir.seq([begin, looks, pause]))
        return tir.seq([tirx.BufferStore(self.seen, _ZERO, [_ZERO]), again])


def _bits(value: int) -> Any:
    return tirx.IntImm(WORD, value)


def take_ticket(counter: Var) -> Any:
    """The next number of a counter that all blocks share: an int32."""
    return T.cuda.atomic_add(_address(counter, [_ZERO]), int_const(1, "int32"))
