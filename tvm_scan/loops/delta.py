"""Delta rules: their arrays and their step, told once, and the plain loop over tokens.

A state is a matrix of ``keys`` rows and ``values`` columns, and each step changes it by products of
two vectors::

    S' = diag(w) S + k u'        u = beta (v - k . (w S))        rule "delta"
    S' = diag(w) S + k v' + b d'         d = a . S               rule "general"

The first is the delta rule (Yang et al. 2024, arXiv 2406.06484), with a gate `w` of a head (gated
delta net, arXiv 2412.06464) or of each row (Kimi delta attention, arXiv 2510.26692), the second has
two vectors to write with and two to erase with (RWKV-7, arXiv 2503.14456). `delta_walk` has the
form of the same steps that CPUs run, and `delta_adjoint` the way back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvm_scan.loops.writer import Cells, Loop
from tvm_scan.reads import reads_of

OfRow = Callable[[Any], Expr]


@dataclass(frozen=True)
class Matrix:
    """A state: cells, and the index of a row and a column, where that stands in a block first."""

    cells: Any
    where: Callable[[Any, Any, Any], Any]

    def __getitem__(self, at: tuple[Any, Any, Any]) -> Expr:
        return self.cells[self.where(*at)]

    def __setitem__(self, at: tuple[Any, Any, Any], value: Expr) -> None:
        self.cells[self.where(*at)] = value


@dataclass(frozen=True)
class Step:
    """The terms of a step.

    Attributes
    ----------
    into : callable
        What is written with, of a row.
    drive : callable
        What is written, of a column.
    gate : callable, optional
        What the state is multiplied by before, of a row.
    rate : Expr, optional
        Writes ``rate`` times what the drive has beyond what the state has for ``into`` already.
    erase : pair of callable, optional
        The vector that reads the state before the step, and the one that what it read is added
        with.
    """

    into: OfRow
    drive: OfRow
    gate: OfRow | None = None
    rate: Expr | None = None
    erase: tuple[OfRow, OfRow] | None = None

    @property
    def source(self) -> OfRow | None:
        """The vector that reads the state before the step, of a row."""
        if self.erase is not None:
            return self.erase[0]
        if self.rate is None:
            return None
        gate = self.gate
        return self.into if gate is None else lambda i: gate(i) * self.into(i)

    def passed(self, i: Any, cell: Expr) -> Expr:
        """Return what the gate leaves of a cell in a row."""
        return cell if self.gate is None else self.gate(i) * cell


def write_step(loop: Loop, keys: Any, dtype: str, step: Step, state: Matrix, v: Any) -> None:
    """Write a step of a column of a state.

    Parameters
    ----------
    loop : Loop
        Is written.
    keys : Expr or int
        Rows of the state.
    dtype : str
        Of a step.
    step : Step
        Its terms.
    state : Matrix
        The state before the step, and after it.
    v : Expr
        The column.
    """
    # What the state has before the step, and what is written.
    known, update = (loop.cell(name, dtype, scope="local") for name in ("known", "update"))
    if step.source is not None:
        write_read(loop, keys, step.source, state, v, known)
    if step.rate is not None:
        update[0] = step.rate * (step.drive(v) - known[0])
    with loop.over(keys, "i") as i:
        amount = step.drive(v) if step.rate is None else update[0]
        written = step.passed(i, state[i, 0, v]) + step.into(i) * amount
        if step.erase is not None:
            written = written + step.erase[1](i) * known[0]
        state[i, 0, v] = written


def write_read(loop: Loop, keys: Any, query: OfRow, state: Matrix, v: Any, total: Cells) -> None:
    """Write the product of a vector and a column of a state into a cell."""
    total[0] = 0
    with loop.over(keys, "i") as i:
        total[0] = total[0] + query(i) * state[i, 0, v]


def key_head(h: Expr, group: int) -> Expr:
    """Return the head of the keys that a head of values has, which so many neighbours share."""
    return h if group == 1 else h // group


class Arrays:
    """The parameters ``q, k, v, [w,] [beta | a, b]`` of a loop, and the terms of a step.

    After them come the parameters of what is read of them, where that has some: ``A_log`` and
    ``dt_bias`` of a head of values, the bias also of each row if the gate is, and ``scale``.

    Parameters
    ----------
    loop : Loop
        To which they are added.
    batch, heads, length : Expr
        Extents; heads are those of `q`, `k`, `a` and `b`.
    keys, values : int
        Rows and columns of a state.
    dtype : str
        Of everything.
    rule : str
        ``delta`` or ``general``.
    gate : str
        Whether `w` belongs to a ``head`` or to each ``key``; without it, ``none``.
    group : int
        Heads of `v`, `w` and `beta`, and states, for each of `q` and `k`.
    reads : str
        What is read of the arrays; see `tvm_scan.reads`.
    """

    def __init__(
        self,
        loop: Loop,
        batch: Expr,
        heads: Expr,
        length: Expr,
        *,
        keys: int,
        values: int,
        dtype: str,
        rule: str,
        gate: str,
        group: int = 1,
        reads: str = "",
    ) -> None:
        self.gate, self.rule, self.group, self.dtype = gate, rule, group, dtype
        self.keys, self.values, self.chains = keys, values, reads_of(reads)
        self.heads = heads if group == 1 else heads * group

        token, of_gate = (batch, length), (keys,) if gate == "key" else ()
        self._shapes: dict[str, tuple[Any, ...]]
        self._shapes = dict.fromkeys("qkab", (*token, heads, keys))
        self._shapes |= {"v": (*token, self.heads, values), "beta": (*token, self.heads)}
        self._shapes |= {"w": (*token, self.heads, *of_gate)}
        names = ["q", "k", "v", *(["w"] if gate != "none" else [])]
        #: Names of what has tokens.
        self.timed = [*names, *(["beta"] if rule == "delta" else ["a", "b"])]
        #: By the names of the parameters.
        self.cells = {name: loop.array(name, self._shapes[name], dtype) for name in self.timed}

        used = {link.parameter for chain in self.chains.values() for link in chain}
        #: Shapes of the parameters that have gradients.
        self.learned: dict[str, tuple[Any, ...]]
        self.learned = {"A_log": (self.heads,), "dt_bias": (self.heads, *of_gate)}
        self.learned = {name: shape for name, shape in self.learned.items() if name in used}
        self.cells |= {n: loop.array(n, shape, dtype) for n, shape in self.learned.items()}
        self._scale = loop.number("scale", dtype=dtype) if "scale" in used else None

    def like(self, loop: Loop, name: str) -> Cells:
        """Add a gradient to the parameters, of the shape of one of them."""
        return loop.array(f"g_{name}", self._shapes[name], self.dtype)

    def has_rows(self, name: str) -> bool:
        """Return whether an array has a cell for each row of a state."""
        return name in ("q", "k", "a", "b") or (name == "w" and self.gate == "key")

    def cell(self, name: str, token: Any, h: Expr, array: Cells | None = None) -> OfRow:
        """Return an array at a token and head, as a function of the row, or of the column.

        It is that of the name, or another one of its shape.
        """
        array = self.cells[name] if array is None else array
        head = key_head(h, self.group) if name in ("q", "k", "a", "b") else h
        if name == "v" or self.has_rows(name):
            return lambda i: array[token, head, i]
        return lambda _: array[token, head]

    def parameter(self, h: Expr, i: Any = None) -> Callable[[str], Expr]:
        """Return the parameters of a head, and of a row, as a function of their names."""

        def value(name: str) -> Expr:
            if name == "scale":
                assert self._scale is not None, "no chain has a scale"
                return self._scale
            has_rows = len(self.learned[name]) > 1
            return self.cells[name][(h, i) if has_rows else (h,)]

        return value

    def step(self, read: Callable[[str], OfRow]) -> Step:
        """Return the terms of a step, given what is read of each array."""
        gate = None if self.gate == "none" else read("w")
        if self.rule == "delta":
            return Step(read("k"), read("v"), gate, read("beta")(0))
        return Step(read("k"), read("v"), gate, None, (read("a"), read("b")))


def delta_rule(batch: Expr, heads: Expr, length: Expr, **options: Any) -> tirx.PrimFunc:
    """Build ``delta_rule(q, k, v, [w,] [beta | a, b,] first, last, y)``.

    A column of the state of a head is a lane. The options are those of `Arrays`; arrays are
    (batch, length, heads, .), states (batch, heads, keys, values), and `reads` is empty.
    """
    with Loop() as loop:
        arrays = Arrays(loop, batch, heads, length, **options)
        keys, values, dtype = arrays.keys, arrays.values, arrays.dtype
        matrices = (batch, arrays.heads, keys, values)
        first, last = (loop.array(name, matrices, dtype) for name in ("first", "last"))
        y = loop.array("y", (batch, length, arrays.heads, values), dtype)
        with loop.lanes("bhkv", *matrices), loop.begin("start") as cell:
            last[cell] = first[cell]
        with (
            loop.lanes("bhv", batch, arrays.heads, values),
            loop.steps(length, "token") as ((b, h, v), t),
        ):
            state = Matrix(last, lambda i, _, v: (b, h, i, v))

            def read(name: str) -> OfRow:
                return arrays.cell(name, (b, t), h)

            write_step(loop, keys, dtype, arrays.step(read), state, v)
            total = loop.cell("total", dtype, scope="local")
            write_read(loop, keys, read("q"), state, v, total)
            y[b, t, h, v] = total[0]
    return loop.func
