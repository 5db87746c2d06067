"""Two lists of stores to registers as one, with products and sums in pairs: see ``pairs``."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, StringImm, Var
from tvm.ir.expr import TensorLoad
from tvm.script import tirx as T

from tvm_scan import tir
from tvm_scan.schedules.common.ir import int_const, local

_F32 = "float32"
_ASM = """
__forceinline__ __device__ void scan_{name}2(float* out, {parameters}) {{
  asm("{{.reg .b64 a, b, c, d; {moves} {name}.rn.f32x2 d, {operands}; mov.b64 {{%0, %1}}, d;}}"
      : "=f"(out[0]), "=f"(out[1]) : {inputs});
}}
"""
#: A register: its buffer, and where it is in it.
Key = tuple[int, tuple[int, ...]]


def _source(name: str, operands: str) -> str:
    numbers = [f"{letter}{half}" for letter in operands for half in "01"]
    moves = [
        f"mov.b64 {letter}, {{%{2 * i + 2}, %{2 * i + 3}}};" for i, letter in enumerate(operands)
    ]
    return _ASM.format(
        name=name,
        parameters=", ".join(f"float {number}" for number in numbers),
        moves=" ".join(moves),
        operands=", ".join(operands),
        inputs=", ".join(f'"f"({number})' for number in numbers),
    )


_SOURCES = {"mul": _source("mul", "ab"), "add": _source("add", "ab"), "fma": _source("fma", "abc")}


def keys_of(access: TensorLoad | tirx.BufferStore) -> list[Key]:
    """The registers of an access; none of other memory, and of an index that is not constant."""
    buffer = access.source if isinstance(access, TensorLoad) else access.buffer
    if str(buffer.scope()) != "local":
        return []
    *outer, last = access.indices
    count = 1
    if isinstance(last, tirx.Ramp):
        if tir.as_int(last.stride) != 1:
            return []
        last, count = last.base, int(last.lanes)
    numbers = [tir.as_int(tir.simplify(index)) for index in (*outer, last)]
    if None in numbers:
        return []
    *lead, first = (number for number in numbers if number is not None)
    return [(hash(buffer), (*lead, first + i)) for i in range(count)]


class Pair:
    """Two steps, statement by statement.

    Parameters
    ----------
    first, second : list of BufferStore
        To registers; as many.
    """

    def __init__(self, first: list[tirx.BufferStore], second: list[tirx.BufferStore]) -> None:
        self.stores = list(zip(first, second, strict=True))
        # Which statement writes a register last, of those that each step writes.
        self.writes: tuple[dict[Key, int], ...] = ({}, {})
        for number, both in enumerate(self.stores):
            for side, store in enumerate(both):
                self.writes[side].update(dict.fromkeys(keys_of(store), number))
        self.done: tuple[set[Key], ...] = (set(), set())
        self.refused = False
        self.copies, self.pool = tir.VarMap(), list[Var]()
        self.stmts: list[Any] = []

    def stmt(self) -> Any:
        """Both steps; None if that is refused, or nothing was made in pairs."""
        for number in range(len(self.stores)):
            self._statement(number)
        if self.refused or not self.pool:
            return None
        buffers = [*(copy for _, copy in self.copies.items()), *self.pool]
        return tir.seq([*(tirx.AllocBuffer(buffer) for buffer in buffers), *self.stmts])

    def _statement(self, number: int) -> None:
        self.number, self.used = number, 0
        (p, q) = self.stores[number]
        values = self._read(0, p.value), self._read(1, q.value)
        left, right = values if self.refused else self._hoisted(*values)
        self.stmts += [self._write(0, p, left), self._write(1, q, right)]

    # ---- registers ------------------------------------------------------------------------------

    def _copy(self, buffer: Var) -> Var:
        if buffer not in self.copies:
            name, shape = f"{buffer.name}_first", tir.shape_of(buffer)
            self.copies[buffer] = local(name, shape, tir.dtype_of(buffer))
        return self.copies[buffer]

    def _read(self, side: int, value: Any) -> Any:
        """``value`` of a step with its reads where they are in the pair."""

        def on_load(load: TensorLoad) -> Any:
            if str(load.source.scope()) != "local":
                return load
            keys = keys_of(load)
            if len(keys) != 1:
                self.refused = True
                return load
            key = keys[0]
            by_first, by_second = (key in writes for writes in self.writes)
            if side == 0:
                lost = key in self.done[1] and key not in self.done[0]
                in_copy = key in self.done[0] and by_second
            else:
                in_copy = by_first and by_second and key not in self.done[1]
                lost = by_first and self.writes[0][key] > self.number and key not in self.done[1]
            self.refused = self.refused or lost
            return tirx.BufferLoad(self._copy(load.source), load.indices) if in_copy else load

        return tir.map_loads(value, on_load)

    def _write(self, side: int, store: tirx.BufferStore, value: Any) -> Any:
        keys = keys_of(store)
        self.done[side].update(keys)
        by_both = [key in self.writes[1] for key in keys]
        self.refused = self.refused or any(by_both) != all(by_both)
        if side == 0 and all(by_both):
            return tirx.BufferStore(self._copy(store.buffer), value, store.indices)
        return tirx.BufferStore(store.buffer, value, store.indices)

    def _waits(self, value: Any) -> bool:
        """Return whether a value of the second step reads what the first one's statement makes."""
        store = self.stores[self.number][0]
        keys = keys_of(store)
        target = self._copy(store.buffer) if keys[0] in self.writes[1] else store.buffer
        cells = [cell for _, cell in keys]
        waits = False

        def on_load(load: TensorLoad) -> None:
            nonlocal waits
            waits = waits or (load.source.same_as(target) and keys_of(load)[0][1] in cells)

        tvm_ffi.structural_walk(value, [(TensorLoad, on_load)])
        return waits

    # ---- values ---------------------------------------------------------------------------------

    def _hoisted(self, p: Any, q: Any) -> tuple[Any, Any]:
        """Two values with their products and sums made in pairs before, where they can be."""
        if _is_packed(p, q) and not self._waits(q):
            pair = self._made(p, q)
            halves = [tirx.BufferLoad(pair, [int_const(half, "int32")]) for half in (0, 1)]
            return halves[0], halves[1]
        replaced: list[tuple[Any, Any, Any, Any]] = []
        for left, right in zip(_parts(p), _parts(q), strict=True) if _alike(p, q) else ():
            if any(left.same_as(old) for old, *_ in replaced):
                continue
            new = self._hoisted(left, right)
            if not (new[0].same_as(left) and new[1].same_as(right)):
                replaced.append((left, right, *new))
        for left, right, new_left, new_right in replaced:
            p, q = _with(p, left, new_left), _with(q, right, new_right)
        return p, q

    def _made(self, p: Any, q: Any) -> Var:
        name, operands = _operation(p), zip(_operands(p), _operands(q), strict=True)
        arguments = [half for pair in operands for half in self._hoisted(*pair)]
        if self.used == len(self.pool):
            self.pool.append(local(f"pair{self.used}", [2], _F32))
        target = self.pool[self.used]
        self.used += 1
        called = T.cuda.func_call(
            f"scan_{name}2",
            target.access_ptr("w", offset=0, extent=2),
            *arguments,
            source_code=_SOURCES[name],
            return_type="void",
        )
        self.stmts.append(tirx.Evaluate(called))
        return target


def _is_packed(p: Any, q: Any) -> bool:
    if not isinstance(p, tirx.Mul | tirx.Add) or type(p) is not type(q):
        return False
    return tir.dtype_of(p) == _F32 and _operation(p) == _operation(q)


def _operation(value: Any) -> str:
    if isinstance(value, tirx.Mul):
        return "mul"
    return "fma" if any(isinstance(side, tirx.Mul) for side in (value.a, value.b)) else "add"


def _operands(value: Any) -> tuple[Any, ...]:
    if _operation(value) != "fma":
        return value.a, value.b
    product, other = (value.a, value.b) if isinstance(value.a, tirx.Mul) else (value.b, value.a)
    return product.a, product.b, other


def _alike(p: Any, q: Any) -> bool:
    return type(p) is type(q) and len(_parts(p)) == len(_parts(q))


def _parts(value: Any) -> list[Any]:
    """Operands in which products and sums are looked for.

    Of a sum or difference that takes a product, which are one rounding, the product's.
    """
    if isinstance(value, tirx.Add | tirx.Sub) and tir.dtype_of(value) == _F32:
        sides = [value.a, value.b]
        product = next((side for side in sides if isinstance(side, tirx.Mul)), None)
        if product is not None:
            other = sides[1] if product is sides[0] else sides[0]
            return [product.a, product.b, other]
    if isinstance(value, tirx.Add | tirx.Sub | tirx.Mul | tirx.Max | tirx.Min):
        return [value.a, value.b]
    if isinstance(value, tirx.Cast):
        return [value.value]
    if isinstance(value, Call):
        return [arg for arg in value.args if not isinstance(arg, StringImm)]
    return []


def _with(value: Any, old: Any, new: Any) -> Any:
    """``value`` with one of its operands replaced."""
    hits = (type(old), lambda node: new if node.same_as(old) else node)
    return tvm_ffi.structural_map(value, hits)
