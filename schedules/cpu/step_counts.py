"""What a step does on a CPU, counted in its statements and in the formulas of its algebras."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.literal import is_float
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Group, Recurrence
from tvm_scan.schedules.common.branches import branches, choices_as_selects
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.common.strides import time_is_outside
from tvm_scan.schedules.cpu.vector_math import has_transcendentals, hoist_first_iteration

__all__ = ["NONE", "Access", "Counts", "Step", "chain_of", "count", "step_of"]

#: Calls that cost about an exponential, and how many of one.
_CALLS = {
    "exp": 1.0, "exp2": 1.0, "log": 1.0, "log2": 1.0, "log1p": 3.0, "tanh": 2.0, "sigmoid": 1.0,
    "pow": 4.0, "sqrt": 0.5, "rsqrt": 1.0, "erf": 2.0, "exp10": 1.0, "log10": 1.0,
}  # fmt: skip
_SIMPLE = (
    tirx.Mul, tirx.Max, tirx.Min, tirx.Select, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ,
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
    calls : float
        Exponentials, or what costs as much.
    quotients : float
        Divisions.
    choices : float
        Of ``if_then_else``, which may be branches.
    """

    operations: float = 0.0
    bytes: float = 0.0
    calls: float = 0.0
    quotients: float = 0.0
    choices: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.operations + other.operations,
            self.bytes + other.bytes,
            self.calls + other.calls,
            self.quotients + other.quotients,
            self.choices + other.choices,
        )

    def times(self, factor: float) -> Counts:
        """So many of them."""
        return Counts(
            self.operations * factor,
            self.bytes * factor,
            self.calls * factor,
            self.quotients * factor,
            self.choices * factor,
        )


NONE = Counts()


@dataclass(frozen=True, eq=False)
class Access:
    """A load or store of a step that goes to memory.

    Attributes
    ----------
    size : int
        Bytes of a cell.
    store : bool
        Whether it is written.
    along_time, along_lane : int or None
        Cells between neighbouring steps, and between neighbouring lanes; None where unknown.
    times : float
        How often a step makes it, over its state.
    """

    size: int
    store: bool
    along_time: int | None
    along_lane: int | None
    times: float

    @property
    def fixed(self) -> bool:
        """Whether a whole lane reads one cell, which stays in a register."""
        return self.along_time == 0 and not self.store


@dataclass(frozen=True, eq=False)
class Part:
    """Formulas of one group: of combinations and of applications to a carry."""

    combine: Counts
    apply: Counts
    extend: Counts
    lift: Counts
    apply_chain: Path
    extend_chain: Path
    sizes: tuple[int, ...]
    carries: tuple[int, ...]
    cells: int
    checked: bool


@dataclass(frozen=True)
class Path:
    """Latencies on a path from a carry to the next one, by their class.

    Attributes
    ----------
    sums, products, simple, calls, quotients : int
        Float sums; products, with a sum or without; operations of one cycle; calls; divisions.
    """

    sums: int = 0
    products: int = 0
    simple: int = 0
    calls: float = 0
    quotients: int = 0

    def plus(self, **more: float) -> Path:
        """With more of some."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Path(**{n: v + more.get(n, 0) for n, v in values.items()})

    @property
    def weight(self) -> float:
        """Roughly its cycles, to find the longest."""
        return (
            3 * self.sums + 4 * self.products + self.simple + 20 * self.calls + 12 * self.quotients
        )


@dataclass(frozen=True, eq=False)
class Step:
    """All that is counted of a recurrence.

    Attributes
    ----------
    rows, length, lanes : int
        All lanes, steps, lanes of the innermost axis.
    body : Counts
        Of a step.
    chain : Path
        The longest path from a carry to the next one.
    accesses : tuple of Access
        Of a step.
    parts : tuple of Part
        For each group.
    loads, stores : float
        Bytes of all arrays that are read, and that are written.
    """

    rows: int
    length: int
    lanes: int
    body: Counts
    chain: Path
    accesses: tuple[Access, ...]
    parts: tuple[Part, ...]
    loads: float
    stores: float
    lanes_inside: bool
    guarded: bool
    in_vectors: bool
    extremum: bool
    transcendental: bool
    state: bool
    backwards: bool


@lru_cache(maxsize=256)
def step_of(recurrence: Recurrence, steps: int | None = None) -> Step:
    """Count a recurrence of so many steps; what is not known until run time is one number."""
    if steps is not None:
        known = step_of(recurrence)
        part = max(1, steps) / known.length
        return replace(
            known, length=max(1, steps), loads=known.loads * part, stores=known.stores * part
        )
    # An empty loop is counted as one step: what is chosen for it does not matter.
    extents = [max(1, known_extent(axis.extent)) for axis in recurrence.lanes]
    chains = [
        chain_of(carry.step, [recurrence.carries[c].old for c in group.carries])
        for group in recurrence.groups
        for carry in (recurrence.carries[c] for c in group.carries)
    ]
    accesses = tuple(_accesses(recurrence))
    written = tir.VarMap((b, True) for b in recurrence.outputs)
    read = [b for b in recurrence.inputs if b not in written]
    return Step(
        rows=prod(extents),
        length=max(1, known_extent(recurrence.time.extent)),
        lanes=extents[-1] if extents else 1,
        body=count(recurrence.body),
        chain=max(chains, key=lambda c: c.weight),
        accesses=accesses,
        parts=tuple(_part(recurrence, group) for group in recurrence.groups),
        loads=sum(map(_size, tir.VarMap((b, True) for b in read).keys())),
        stores=sum(map(_size, written.keys())),
        lanes_inside=time_is_outside(recurrence),
        in_vectors=_stays_in_vectors(recurrence),
        guarded=_is_guarded(recurrence.body),
        extremum=any(
            isinstance(c.step, tirx.Max | tirx.Min) and is_float(c.dtype)
            for c in recurrence.carries
        ),
        transcendental=has_transcendentals(recurrence),
        state=any(carry.state_axes for carry in recurrence.carries),
        backwards=any((a.along_time or 0) < 0 for a in accesses),
    )


def _size(buffer: Var) -> float:
    cells = prod(known_extent(extent) for extent in tir.shape_of(buffer))
    return float(cells * tir.byte_size(tir.dtype_of(buffer)))


def _part(recurrence: Recurrence, group: Group) -> Part:
    algebra = group.algebra
    first, second = (
        tuple(tirx.Var(f"{side}{i}", d) for i, d in enumerate(algebra.dtypes)) for side in "lr"
    )
    olds = tuple(
        tirx.Var(f"h{i}", recurrence.carries[c].dtype) for i, c in enumerate(group.carries)
    )
    plain = algebra.plainly() or algebra
    lifted = algebra.lift()
    varying = [not isinstance(part, tirx.FloatImm | tirx.IntImm) for part in lifted]
    combined = [
        e for e, varies in zip(plain.combine(first, second), varying, strict=True) if varies
    ]
    applied, extended = plain.apply(first, olds), algebra.extend(first, second)
    return Part(
        combine=_sum(combined),
        apply=_sum(applied),
        extend=_sum(extended),
        lift=_sum(lifted),
        apply_chain=max((chain_of(e, olds) for e in applied), key=lambda c: c.weight),
        extend_chain=max((chain_of(e, first) for e in extended), key=lambda c: c.weight),
        # Parts that are numbers stay numbers, which LLVM knows.
        sizes=tuple(
            tir.byte_size(d) for d, varies in zip(algebra.dtypes, varying, strict=True) if varies
        ),
        carries=tuple(tir.byte_size(recurrence.carries[c].dtype) for c in group.carries),
        cells=prod(known_extent(axis.extent) for axis in recurrence.state_axes(group)),
        checked=getattr(plain, "exact", None) is not None,
    )


def _has_half(cast: Any) -> bool:
    return tir.is_half(tir.dtype_of(cast)) or tir.is_half(tir.dtype_of(cast.value))


def _sum(expressions: Any) -> Counts:
    total = NONE
    for expression in expressions:
        total += count(expression)
    return total


def count(node: Any) -> Counts:
    """Operations of a statement or expression; accesses and indices are not looked into."""
    found = [0.0, 0.0, 0.0, 0.0, 0.0]
    skip = tvm_ffi.WalkResult.SKIP

    def add(amount: float, size: int) -> None:
        found[0] += amount
        found[1] += amount * size

    def on_loop(loop: tirx.For) -> Any:
        inner, times = count(loop.body), known_extent(loop.extent)
        for i, value in enumerate(
            (inner.operations, inner.bytes, inner.calls, inner.quotients, inner.choices)
        ):
            found[i] += times * value
        return skip

    def on_store(store: tirx.BufferStore) -> Any:
        inner = count(store.value)
        for i, value in enumerate(
            (inner.operations, inner.bytes, inner.calls, inner.quotients, inner.choices)
        ):
            found[i] += value
        return skip

    def size_of(node: Any) -> int:
        return tir.byte_size(tir.dtype_of(node.a if hasattr(node, "a") else node))

    def on_sum(node: Any) -> None:
        fused = is_float(tir.dtype_of(node)) and any(
            isinstance(side, tirx.Mul) for side in (node.a, node.b)
        )
        add(0.0 if fused else 1.0, size_of(node))

    def on_choice(node: Any) -> None:
        floats = is_float(tir.dtype_of(node))
        if isinstance(node, tirx.Mul) and not floats:
            # Two halves of a product of 32 bits in a vector, three of 64.
            found[1] += 2.0 * size_of(node)
        dear = floats and isinstance(node, tirx.Max | tirx.Min)
        dear = dear or (isinstance(node, tirx.Cast) and _has_half(node))
        add(3.0 if dear else 1.0, size_of(node))

    def on_quotient(node: Any) -> None:
        found[3] += 1.0
        add(1.0, size_of(node))

    def on_call(call: Call) -> None:
        name = (tir.call_name(call) or "").rpartition(".")[2]
        if name == "if_then_else":
            found[4] += 1.0
            add(1.0, tir.byte_size(tir.dtype_of(call)))
        elif name in _CALLS:
            found[2] += _CALLS[name]

    handlers: list[Any] = [
        (tirx.For, on_loop),
        (tirx.BufferStore, on_store),
        (TensorLoad, lambda _: skip),
        (Call, on_call),
        (tirx.Add, on_sum),
        (tirx.Sub, on_sum),
        *((kind, on_quotient) for kind in _QUOTIENTS),
        *((kind, on_choice) for kind in _SIMPLE),
    ]
    tvm_ffi.structural_walk(node, handlers, order="pre")
    return Counts(*found)


def chain_of(node: Any, starts: Any) -> Path:
    """The longest path from one of some variables to an expression."""
    begin = tir.VarMap((var, True) for var in starts)
    known: dict[Any, Path | None] = {}

    def longest_of(found: list[Path]) -> Path | None:
        return max(found, key=lambda c: c.weight) if found else None

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
        if isinstance(e, Call):
            name = (tir.call_name(e) or "").rpartition(".")[2]
            inner = longest(e.args)
            if inner is None:
                return None
            return inner.plus(calls=_CALLS[name]) if name in _CALLS else inner.plus(simple=1)
        if isinstance(e, tirx.Select):
            inner = longest([e.condition, e.true_value, e.false_value])
            return None if inner is None else inner.plus(simple=1)
        if isinstance(e, tirx.Cast | tirx.Not):
            inner = longest([e.value if isinstance(e, tirx.Cast) else e.a])
            return None if inner is None else inner.plus(simple=1)
        if not hasattr(e, "a"):
            return None
        inner = longest([e.a, e.b])
        if inner is None:
            return None
        floats = is_float(tir.dtype_of(e.a))
        if isinstance(e, tirx.Mul):
            return inner.plus(products=1) if floats else inner.plus(simple=3)
        if isinstance(e, tirx.Add | tirx.Sub) and floats:
            return added(e)
        if isinstance(e, _QUOTIENTS):
            return inner.plus(quotients=1)
        if isinstance(e, tirx.Max | tirx.Min) and floats:
            return inner.plus(simple=4)
        return inner.plus(simple=1)

    def added(e: Any) -> Path | None:
        """A sum: one product is a part of it, a second one is not."""
        products = [isinstance(side, tirx.Mul) for side in (e.a, e.b)]
        ways = []
        for side, own, other in ((e.a, *products), (e.b, *reversed(products))):
            way = path(side)
            if way is not None:
                alone = way.plus(sums=1) if own == other else way.plus(products=1)
                ways.append(way if own and not other else alone)
        return longest_of(ways)

    return path(node) or Path()


def _accesses(recurrence: Recurrence) -> list[Access]:
    """Loads and stores of a step, each once."""
    time = recurrence.time.var
    lane = recurrence.lanes[-1].var if recurrence.lanes else None
    one_lane = lane is None or known_extent(recurrence.lanes[-1].extent) == 1
    out: dict[Any, Access] = {}

    def strides(buffer: Var, indices: Any, var: Any) -> int | None:
        if var is None:
            return 0
        total, each = 0, 1
        for index, extent in zip(reversed(indices), reversed(tir.shape_of(buffer)), strict=True):
            part = linear_in(index, var)
            if part is None:
                return None
            total += part[0] * each
            each *= known_extent(extent)
        return total

    def add(buffer: Var, indices: Any, times: float, store: bool) -> None:
        if str(buffer.scope()) == "local":
            return
        key = (str(buffer.name), tuple(str(i) for i in indices), store)
        if key in out:
            return
        along_lane = 0 if one_lane else strides(buffer, indices, lane)
        size = tir.byte_size(tir.dtype_of(buffer))
        out[key] = Access(size, store, strides(buffer, indices, time), along_lane, times)

    def walk(stmt: Any, times: float) -> None:
        skip = tvm_ffi.WalkResult.SKIP

        def on_loop(loop: tirx.For) -> Any:
            walk(loop.body, times * known_extent(loop.extent))
            return skip

        handlers: list[Any] = [
            (tirx.For, on_loop),
            (TensorLoad, lambda n: add(n.source, list(n.indices), times, False)),
            (tirx.BufferStore, lambda n: add(n.buffer, list(n.indices), times, True)),
        ]
        tvm_ffi.structural_walk(stmt, handlers, order="pre")

    walk(recurrence.body, 1.0)
    return list(out.values())


def _is_guarded(body: Any) -> bool:
    """Whether a value that was read chooses what is read."""
    found: list[bool] = []

    def on_call(call: Call) -> None:
        if tir.call_name(call) == "prim.if_then_else":
            found.append(any(str(x.source.scope()) != "local" for x in tir.loads(call.args[0])))

    tvm_ffi.structural_walk(body, [(Call, on_call)])
    return any(found)


def _stays_in_vectors(recurrence: Recurrence) -> bool:
    """Whether the builder makes a vector loop of a step: without a choice between reads."""
    own: list[Var] = []
    for register in recurrence.registers:
        own += [register.local, *register.previous]
    return not branches(choices_as_selects(hoist_first_iteration(recurrence.body), own))
