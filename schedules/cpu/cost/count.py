"""Operations of expressions on a CPU, and the longest path through them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import add, attrgetter
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.schedules.common.sizes import known_extent

#: Calls that cost about an exponential, and how many of one.
_CALLS = {
    "exp": 1.0, "exp2": 1.0, "log": 1.0, "log2": 1.0, "log1p": 3.0, "tanh": 2.0, "sigmoid": 1.0,
    "pow": 4.0, "sqrt": 0.5, "rsqrt": 1.0, "erf": 2.0, "exp10": 1.0, "log10": 1.0,
}  # fmt: skip
#: Those that no power of two scales in the end.
_NEVER_SCALED = ("log", "log2", "log1p", "log10", "sqrt", "rsqrt")
#: Those that wait for less than they take: log-sum-exps of 1000 rows of 300 steps take a Zen 4 90
#: cycles a step in vectors of 4, 8 and 16 rows, and 115 one by one.
_WAITS = {"log1p": 2.0}
_SIMPLE = (
    tirx.Mul, tirx.Max, tirx.Min, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ,
    tirx.NE, tirx.And, tirx.Or, tirx.Not, tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor,
    tirx.LShift, tirx.RShift, tirx.Cast,
)  # fmt: skip
_QUOTIENTS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


@dataclass(frozen=True)
class Counts:
    """Operations of some code on one lane and step.

    Attributes
    ----------
    operations : float
        Instructions of arithmetic on scalars; a product and the sum that takes it are one.
    bytes : float
        The same, each by the bytes of its operands: what a vector of them costs.
    products : float
        Of these bytes, those of products of integers, which are several instructions on some.
    simple : float
        Of these bytes, those of choices, comparisons, logic and integers, which more ports do than
        sums and products of floats.
    calls, scales : float
        Exponentials, or what costs as much; those that a power of two scales in the end.
    quotients : float
        Divisions.
    floats : float
        Of the operations, sums, products and extrema of floats, for which scalar code has the ports
        that vectors have.
    halves : float
        Numbers of 16 bits that become floats of 32, and those that are made of these.
    choices : float
        Of ``if_then_else``, which may be branches.
    extremes : float
        Of the operations, maxima and minima of integers: one instruction on vectors, and in scalar
        code a comparison and a jump or a move beside it.
    """

    operations: float = 0.0
    bytes: float = 0.0
    calls: float = 0.0
    quotients: float = 0.0
    choices: float = 0.0
    products: float = 0.0
    extremes: float = 0.0
    simple: float = 0.0
    scales: float = 0.0
    floats: float = 0.0
    halves: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(add, _values(self), _values(other)))

    def times(self, factor: float) -> Counts:
        """Return these counts multiplied by ``factor``."""
        return Counts(*(value * factor for value in _values(self)))


NONE = Counts()
#: Of a half that becomes a float32.
WIDENED = Counts(operations=3.0, bytes=12.0, halves=1.0)
# Unlike those of ``astuple``, which copies each.
_NAMES = tuple(field.name for field in fields(Counts))
_values = attrgetter(*_NAMES)


@dataclass(frozen=True)
class Path:
    """Latencies on a path from a carry to the next one, by their class.

    Attributes
    ----------
    sums, products, fused, extremes, simple, calls, quotients : int
        Float sums; products, with a sum or without, and those whose sum waits for them; float
        maxima and minima; operations of one cycle; calls; divisions.
    """

    sums: int = 0
    products: int = 0
    fused: int = 0
    extremes: int = 0
    simple: int = 0
    calls: float = 0
    quotients: int = 0

    def plus(self, **more: float) -> Path:
        """Return this path with more of some counts."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Path(**{n: v + more.get(n, 0) for n, v in values.items()})

    @property
    def operations(self) -> float:
        """Instructions on it; calls are long."""
        short = self.sums + self.products + self.extremes + self.simple + self.quotients
        return short + 16 * self.calls

    @property
    def weight(self) -> float:
        """Estimate of its cycles, to find the longest."""
        waits = 3 * self.sums + 4 * self.products + 4 * self.extremes + self.simple
        return waits + 20 * self.calls + 12 * self.quotients


def _has_half(cast: Any) -> bool:
    return tir.is_half(tir.dtype_of(cast)) or tir.is_half(tir.dtype_of(cast.value))


def _is_extremum(select: Any) -> bool:
    """Return whether a choice is of the two values that it compares, which is one instruction."""
    condition = select.condition
    if not isinstance(condition, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
        return False
    values = [select.true_value, select.false_value]
    sides = [condition.a, condition.b]
    return any(all(map(tir.structurally_equal, sides, order)) for order in (values, values[::-1]))


def sum_of(expressions: Any) -> Counts:
    """Operations of several expressions together; what they have in common is made once."""
    known: set[int] = set()
    return sum((count(e, known) for e in expressions), NONE)


def count(node: Any, known: set[int] | None = None) -> Counts:
    """Operations of a statement or expression; accesses and indices are not looked into.

    Parameters
    ----------
    node : Stmt or Expr
        What is counted.
    known : set of int, optional
        Hashes of the expressions that were counted before, which are not counted again.
    """
    counts = dict.fromkeys(_NAMES, 0.0)
    inside: list[Counts] = []
    skip = tvm_ffi.WalkResult.SKIP

    def is_known(node: Any) -> bool:
        if known is None:
            return False
        key = int(tvm_ffi.structural_hash(node))
        found_before = key in known
        known.add(key)
        return found_before

    def once(handler: Any) -> Any:
        return lambda node: skip if is_known(node) else handler(node)

    def counted(amount: float, size: int, simple: bool = False) -> None:
        counts["operations"] += amount
        counts["bytes"] += amount * size
        counts["simple"] += amount * size * simple

    def on_loop(loop: tirx.For) -> Any:
        inside.append(count(loop.body).times(known_extent(loop.extent)))
        return skip

    def on_store(store: tirx.BufferStore) -> Any:
        inside.append(count(store.value))
        return skip

    def size_of(node: Any) -> int:
        return tir.byte_size(tir.dtype_of(node.a if hasattr(node, "a") else node))

    def on_sum(node: Any) -> None:
        floats = is_float(tir.dtype_of(node))
        fused = floats and any(isinstance(side, tirx.Mul) for side in (node.a, node.b))
        amount = 0.0 if fused else 1.0
        counts["floats"] += amount * floats
        counted(amount, size_of(node), simple=not floats)

    def on_choice(node: Any) -> None:
        floats = is_float(tir.dtype_of(node))
        if isinstance(node, tirx.Mul) and not floats:
            counts["products"] += size_of(node)
        extremum = isinstance(node, tirx.Max | tirx.Min)
        if extremum and not floats:
            counts["extremes"] += 1.0
        counts["floats"] += floats and (extremum or isinstance(node, tirx.Mul))
        dear = isinstance(node, tirx.Cast) and _has_half(node)
        counts["halves"] += dear
        amount = WIDENED.operations if dear else 1.0
        counted(amount, size_of(node), simple=not floats and not extremum)

    def on_select(node: Any) -> Any:
        extremum = _is_extremum(node)
        counted(1.0, size_of(node.true_value), simple=not extremum)
        if not extremum:
            return None
        if is_float(tir.dtype_of(node)):
            counts["floats"] += 1.0
        else:
            counts["extremes"] += 1.0
        inside.extend(count(value, known) for value in (node.true_value, node.false_value))
        return skip

    def on_quotient(node: Any) -> None:
        counts["quotients"] += 1.0
        counted(1.0, size_of(node))

    def on_call(call: Call) -> None:
        name = (tir.call_name(call) or "").rpartition(".")[2]
        if name == "if_then_else":
            counts["choices"] += 1.0
            counted(1.0, tir.byte_size(tir.dtype_of(call)), simple=True)
        elif name in _CALLS:
            counts["calls"] += _CALLS[name]
            counts["scales"] += name not in _NEVER_SCALED

    kinds: dict[type, Any] = {
        TensorLoad: lambda _: skip,
        Call: once(on_call),
        tirx.Select: once(on_select),
        **dict.fromkeys((tirx.Add, tirx.Sub), once(on_sum)),
        **dict.fromkeys(_QUOTIENTS, once(on_quotient)),
        **dict.fromkeys(_SIMPLE, once(on_choice)),
    }

    def on_expression(e: Any) -> Any:
        handler = kinds.get(type(e))
        return handler(e) if handler is not None else None

    # A handler for each kind would take longer to tell of than most expressions take to count.
    handlers = [(tirx.For, on_loop), (tirx.BufferStore, on_store), (Expr, on_expression)]
    tvm_ffi.structural_walk(node, handlers, order="pre")
    return sum(inside, Counts(**counts))


def _is_jumped(e: Any) -> bool:
    """Return whether scalar code jumps over a value that is a product or zero."""
    if not isinstance(e, Call) or tir.call_name(e) != "prim.if_then_else":
        return False
    values = list(e.args[1:])
    zero = any(isinstance(v, tirx.FloatImm) and v.value == 0 for v in values)
    return zero and any(isinstance(v, tirx.Mul) for v in values)


def _is_float_extremum(e: Any) -> bool:
    extremum = isinstance(e, tirx.Max | tirx.Min)
    extremum = extremum or (isinstance(e, tirx.Select) and _is_extremum(e))
    return extremum and is_float(tir.dtype_of(e))


def _operands(e: Any) -> list[Any]:
    """Values that the result of an operation waits for."""
    if isinstance(e, Call):
        return list(e.args)
    if isinstance(e, tirx.Select):
        values = [e.true_value, e.false_value]
        # An instruction, or a branch that is seldom taken.
        return values if _is_extremum(e) else [e.condition, *values]
    sides = ("value",) if isinstance(e, tirx.Cast) else ("a", "b")
    return [getattr(e, side) for side in sides if hasattr(e, side)]


def _latency(e: Any) -> dict[str, float]:
    """Counts that an operation adds to a path."""
    name = (tir.call_name(e) or "").rpartition(".")[2]
    if name in _CALLS:
        return {"calls": _WAITS.get(name, _CALLS[name])}
    if isinstance(e, _QUOTIENTS):
        return {"quotients": 1}
    if isinstance(e, tirx.Mul):
        return {"products": 1} if is_float(tir.dtype_of(e)) else {"simple": 3}
    return {"extremes": 1} if _is_float_extremum(e) else {"simple": 1}


def chain_of(node: Any, starts: Any, *, scalar: bool = False) -> Path:
    """The longest path from one of some variables to an expression.

    Parameters
    ----------
    node : Expr
        The end.
    starts : list of Var
        The beginnings.
    scalar : bool
        Whether LLVM jumps over what is not chosen, and nothing waits for a jump that is guessed.
        (Affine steps with resets take a Cascade Lake 8.1 cycles, its product and its sum 7.9.)
    """
    begin = tir.VarMap((var, True) for var in starts)
    known: dict[Any, Path | None] = {}

    def longest_of(paths: list[Path]) -> Path | None:
        return max(paths, key=lambda c: c.weight) if paths else None

    def longest(parts: Any) -> Path | None:
        return longest_of([c for c in map(path, parts) if c is not None])

    def path(e: Any) -> Path | None:
        if isinstance(e, Var):
            return Path() if e in begin else None
        if isinstance(e, TensorLoad) or not hasattr(e, "ty"):
            return None
        key = e.__chandle__() if hasattr(e, "__chandle__") else id(e)
        if key not in known:
            known[key] = step(e)
        return known[key]

    def step(e: Any) -> Path | None:
        if isinstance(e, tirx.Add | tirx.Sub) and is_float(tir.dtype_of(e)):
            return added(e)
        inner = longest(_operands(e))
        if inner is None or (scalar and _is_jumped(e)):
            return inner
        return inner.plus(**_latency(e))

    def added(e: Any) -> Path | None:
        """A sum: one product is a part of it, a second one is not."""
        ways = []
        for side, other in ((e.a, e.b), (e.b, e.a)):
            way = path(side)
            is_product, other_is = isinstance(side, tirx.Mul), isinstance(other, tirx.Mul)
            if way is None:
                continue
            kind = "sums" if is_product == other_is else "fused" if is_product else "products"
            ways.append(way.plus(**{kind: 1}))
        return longest_of(ways)

    return path(node) or Path()
