"""Small, total functions on TensorIR that the whole package shares.

In TVM 0.27 a buffer is a ``tvm.ir.Var`` whose ``ty`` is a ``BufferType``, and a load is a
``TensorLoad`` with ``source`` and ``indices``. Nothing outside this file needs to know that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Generic, TypeVar

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, PrimType, Range, Var
from tvm.ir.expr import TensorLoad, is_prim_expr
from tvm.s_tir import SBlock
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

#: Bytes of a line of a CPU's caches.
LINE_BYTES = 64
_Key = TypeVar("_Key")


class _Map(Generic[_Key]):
    """A map keyed by parts of TIR (``==`` on those of TVM builds an expression)."""

    def __init__(self, pairs: Iterable[tuple[_Key, Any]] = ()) -> None:
        self._items: dict[Any, tuple[_Key, Any]] = {}
        for key, value in pairs:
            self[key] = value

    @staticmethod
    def _hashed(key: _Key) -> Any:
        raise NotImplementedError

    def __setitem__(self, key: _Key, value: Any) -> None:
        self._items[self._hashed(key)] = (key, value)

    def __getitem__(self, key: _Key) -> Any:
        return self._items[self._hashed(key)][1]

    def __contains__(self, key: _Key) -> bool:
        return self._hashed(key) in self._items

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: _Key, default: Any = None) -> Any:
        """Value of ``key``, or ``default``."""
        item = self._items.get(self._hashed(key))
        return default if item is None else item[1]

    def items(self) -> list[tuple[_Key, Any]]:
        """Pairs in insertion order."""
        return list(self._items.values())

    def keys(self) -> list[_Key]:
        """Keys in insertion order."""
        return [key for key, _ in self._items.values()]


class VarMap(_Map[Var]):
    """A map keyed by variable identity."""

    @staticmethod
    def _hashed(key: Var) -> int:
        return hash(key)

    def copy(self) -> VarMap:
        """Shallow copy."""
        return VarMap(self.items())


class ExprMap(_Map[Any]):
    """A map keyed by expressions, as `structurally_equal` compares them."""

    @staticmethod
    def _hashed(key: Any) -> Any:
        structural: Any = tvm_ffi.StructuralKey  # takes a node alone, whatever its stub says
        return structural(key)


def dtype_of(expr: Any) -> str:
    """Element dtype of an expression or of a buffer, as a string."""
    return str(expr.ty.dtype)


def shape_of(buffer: Var) -> list[Any]:
    """Extents of a buffer."""
    return list(buffer.ty.shape)


def as_int(expr: Any) -> int | None:
    """Value of a constant integer expression, else None."""
    if isinstance(expr, int):
        return expr
    return int(expr.value) if isinstance(expr, tirx.IntImm) else None


def is_true(expr: Any) -> bool:
    """Return whether ``expr`` is the constant true."""
    return expr is True or (isinstance(expr, tirx.IntImm) and int(expr.value) != 0)


def byte_size(dtype: str) -> int:
    """Bytes of one cell; a bool takes one."""
    digits = "".join(c for c in dtype if c.isdigit())
    return max(1, int(digits) // 8) if digits else 1


def is_half(dtype: str) -> bool:
    """Return whether ``dtype`` is a 16-bit float, whose carries are kept in float32."""
    return dtype in ("float16", "bfloat16")


def wide_dtype(dtype: str) -> str:
    """Dtype in which a carry of ``dtype`` is kept in registers."""
    return "float32" if is_half(dtype) else dtype


def substitute(node: Any, mapping: VarMap | Mapping[Var, Any]) -> Any:
    """``node`` with every variable of ``mapping`` replaced by its value."""
    table = mapping if isinstance(mapping, VarMap) else VarMap(mapping.items())
    if not len(table) or isinstance(node, tirx.IntImm):
        return node
    if isinstance(node, Var) and isinstance(node.ty, PrimType):
        return table.get(node, node)
    return tvm_ffi.structural_map(node, (Var, lambda var: table.get(var, var)))


def is_leaf(node: Any) -> bool:
    """Return whether ``node`` is a variable or an integer, as most indices are.

    Structural visits of TVM cost ten times this question.
    """
    return isinstance(node, Var | tirx.IntImm)


def map_loads(node: Any, fn: Callable[[TensorLoad], Any]) -> Any:
    """``node`` with ``fn`` applied to every buffer load, innermost first."""
    if is_leaf(node):
        return node
    return tvm_ffi.structural_map(node, (TensorLoad, fn))


def map_accesses(stmt: Any, moved: Callable[[Var, list[Any]], tuple[Var, Any] | None]) -> Any:
    """``stmt`` with each load and store where ``moved`` puts it; None leaves it as it is."""

    def on_load(load: TensorLoad) -> Any:
        to = moved(load.source, list(load.indices))
        return load if to is None else tirx.BufferLoad(*to)

    def on_store(store: tirx.BufferStore) -> Any:
        to = moved(store.buffer, list(store.indices))
        return store if to is None else tirx.BufferStore(to[0], store.value, to[1])

    return tvm_ffi.structural_map(stmt, [(TensorLoad, on_load), (tirx.BufferStore, on_store)])


def loads(node: Any) -> list[TensorLoad]:
    """Every buffer load in ``node``."""
    return [] if is_leaf(node) else nodes(node, TensorLoad)


def nodes(node: Any, *kinds: Any, outside: Sequence[Any] = ()) -> list[Any]:
    """Every part of ``node`` that is of one of the kinds, and not inside of a part of others."""
    parts: list[Any] = []
    handlers: list[Any] = [(kinds, lambda part: parts.append(part))]
    if not outside:
        tvm_ffi.structural_walk(node, handlers)
    else:
        handlers.append((tuple(outside), lambda _: tvm_ffi.WalkResult.SKIP))
        tvm_ffi.structural_walk(node, handlers, order="pre")
    return parts


def variables(node: Any) -> VarMap:
    """Every variable that occurs in ``node`` (buffers included).

    Of an expression, and of several, those that are taken from outside; of anything else all, those
    of the shapes of its buffers as well.
    """
    if isinstance(node, list | tuple | tvm_ffi.Array):
        return VarMap(pair for part in node for pair in variables(part).items())
    if isinstance(node, tirx.IntImm):  # many indices are, or a variable: see `loads`
        return VarMap()
    if isinstance(node, Var):
        if isinstance(node.ty, PrimType):
            return VarMap([(node, True)])
    elif is_prim_expr(node):  # a visit in Python takes fifteen times as long
        return VarMap((var, True) for var in undefined_vars(node, []))
    return VarMap((var, True) for var in nodes(node, Var))


def contains_var(node: Any, wanted: Iterable[Var]) -> bool:
    """Return whether any of ``wanted`` occurs in ``node``."""
    present = variables(node)
    return any(var in present for var in wanted)


def buffers_loaded(node: Any) -> VarMap:
    """Buffers that ``node`` reads."""
    return VarMap((load.source, True) for load in loads(node))


def buffers_stored(stmt: Any) -> VarMap:
    """Buffers that ``stmt`` writes."""
    return VarMap((store.buffer, True) for store in nodes(stmt, tirx.BufferStore))


def variables_bound(stmt: Any) -> VarMap:
    """Variables that a loop, a let or a block inside ``stmt`` gives values."""
    parts = nodes(stmt, SBlock, tirx.For, tirx.Bind, tirx.Let)
    return VarMap((var, True) for part in parts for var in _bound_by(part))


def _bound_by(part: Any) -> list[Var]:
    if isinstance(part, tirx.For):
        return [part.loop_var]
    return [axis.var for axis in part.iter_vars] if isinstance(part, SBlock) else [part.var]


def buffers_allocated(stmt: Any) -> VarMap:
    """Buffers that an allocation inside ``stmt`` defines."""
    return VarMap((alloc.buffer, True) for alloc in nodes(stmt, tirx.AllocBuffer, tirx.DeclBuffer))


def prefetch(cell: Any, cache: int, *, written: bool = False) -> Any:
    """Call that asks for the line of a cell, to be used later, into the first or second cache."""
    # LLVM's numbers: what for, how near (3 is the first cache), and that it is data.
    numbers = [tirx.IntImm("int32", n) for n in (int(written), 4 - cache, 1)]
    return tirx.call_intrin("void", "tirx.prefetch", tirx.address_of(cell), *numbers)


def call_name(expr: Any) -> str | None:
    """Operator name of a call (``tirx.exp``), else None."""
    if isinstance(expr, Call) and isinstance(expr.op, Op):
        return str(expr.op.name)
    return None


def simplify(expr: Any, ranges: Iterable[tuple[Var, Any]] = ()) -> Any:
    """``expr`` simplified, each variable of ``ranges`` bound to ``[0, extent)``."""
    analyzer = Analyzer()
    for var, extent in ranges:
        analyzer.bind(var, Range.from_min_extent(zero_like(var), extent))
    return analyzer.simplify(expr)


def zero_like(var: Any) -> Any:
    """Integer zero of the dtype of ``var``."""
    return tirx.IntImm(dtype_of(var), 0)


def structurally_equal(left: Any, right: Any) -> bool:
    """Return whether two expressions, or lists, over the same free variables are the same tree."""
    return bool(tvm_ffi.structural_equal(left, right, map_free_vars=False))


def same_extent(left: Any, right: Any) -> bool:
    """Return whether two extents are the same, numbers by value.

    TVMScript writes plain numbers in int32, TVM's operators have int64.
    """
    return structurally_equal(left, right) or as_int(left) == as_int(right) is not None


def all_of(conditions: Sequence[Any]) -> Any:
    """All conditions as one; None of none."""
    return reduce(tirx.And, conditions) if conditions else None


def each_once(exprs: Iterable[Any]) -> list[Any]:
    """Expressions in their order, the first of those that are the same tree."""
    first = ExprMap()
    for e in exprs:
        if e not in first:
            first[e] = True
    return first.keys()


def seq(stmts: Iterable[Any]) -> Any:
    """One statement from several; nested sequences are flattened, empty statements left out."""
    flat: list[Any] = []
    for stmt in stmts:
        if stmt is None or is_empty(stmt):
            continue
        flat.extend(stmt.seq if isinstance(stmt, tirx.SeqStmt) else [stmt])
    if not flat:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    return flat[0] if len(flat) == 1 else tirx.SeqStmt(flat)


def sum_by_pairs(values: list[Any]) -> Any:
    """The sum of neighbours, of pairs of neighbours, and so on; as many as a power of two."""
    while len(values) > 1:
        values = [left + right for left, right in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def is_empty(stmt: Any) -> bool:
    """Return whether ``stmt`` does nothing, as what ``seq`` makes of no statements."""
    return isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, tirx.IntImm)


def block_with(block: SBlock, **changed: Any) -> SBlock:
    """Copy of an ``SBlock`` with other parts, by the names of its attributes."""
    names = "iter_vars reads writes name_hint body init alloc_buffers match_buffers annotations"
    return SBlock(*(changed.get(name, getattr(block, name)) for name in names.split()))


def loop_with(loop: tirx.For, body: Any, kind: tirx.ForKind | None = None) -> tirx.For:
    """Copy of a loop with another body, and where it is given, of another kind."""
    kind = loop.kind if kind is None else kind
    parts = (loop.loop_var, loop.min, loop.extent, kind, body)
    return tirx.For(*parts, loop.thread_binding, loop.annotations)


def loops_over(axes: Iterable[tuple[Var, Any]], stmt: Any) -> Any:
    """``stmt`` in serial loops from zero on, of variables and extents, the outermost first."""
    for var, extent in reversed(list(axes)):
        stmt = tirx.For(var, zero_like(var), extent, tirx.ForKind.SERIAL, stmt)
    return stmt


def store_cells(buffer: Var, indices: Sequence[Any], value: Callable[[list[Any]], Any]) -> Any:
    """Store ``value(indices)`` at the cells of a buffer; an index of None runs over its extent.

    An extent of 1 has no loop: loops that differ are not seen as lanes.
    """
    extents = shape_of(buffer)
    free = {
        i: Var(f"i{i}", prim_type(dtype_of(extent)))
        for i, extent in enumerate(extents)
        if indices[i] is None and as_int(extent) != 1
    }
    full = [
        free.get(i, zero_like(extents[i]) if index is None else index)
        for i, index in enumerate(indices)
    ]
    store = tirx.BufferStore(buffer, value(full), full)
    return loops_over(((var, extents[i]) for i, var in free.items()), store)


def fresh_copy(stmt: Any) -> Any:
    """Copy of ``stmt`` whose loop variables and bindings are new.

    TVM wants every variable defined once; a statement that is used twice is copied first.
    """
    bound = (var for part in nodes(stmt, tirx.For, tirx.Bind) for var in _bound_by(part))
    return substitute(stmt, VarMap((var, Var(var.name, var.ty)) for var in bound))


def prim_type(dtype: str) -> PrimType:
    """Scalar type of that dtype."""
    return PrimType(dtype)
