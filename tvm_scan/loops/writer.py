"""The writer of sequential loops: arrays, lanes, steps, and what a step does, as plain Python.

A loop is written in the order in which it runs. The sum of each row of `X` is::

    with Loop() as loop:
        X = loop.array("X", (rows, length), "float16", "float32")
        Y = loop.array("Y", (rows, length), "float16", "float32")
        total = loop.state((rows,), "float32")
        with loop.lanes("r", rows):
            with loop.begin() as lane:
                total[lane] = 0
            with loop.steps(length) as (lane, t):
                total[lane] = total[lane] + X[lane, t]
                Y[lane, t] = total[lane]
    return loop.func

What a block reads and writes is found by TVM, as in a script. A Python condition leaves out what
an option does not need, down to the parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_scan import tir
from tvm_scan.annotations import OP_PATTERN, OPAQUE_PATTERN

#: Of every loop: arrays do not overlap, and Relax must not fuse what carries a value through time.
ATTRS = {"tirx.noalias": True, OP_PATTERN: OPAQUE_PATTERN}

Index = Sequence[Any]


def const(value: float, dtype: str) -> Expr:
    """Make a constant."""
    return tirx.const(value, dtype)


def cast(value: Any, dtype: str) -> Expr:
    """Convert an expression or a number to a dtype, without a node where it has it."""
    if isinstance(value, (int, float)):
        return const(value, dtype)
    return value if tir.dtype_of(value) == dtype else tirx.Cast(dtype, value)


def unless(reset: Cells | None, where: Index, value: Expr) -> Expr:
    """Return `value`, and 0 where there is a reset; without an array of resets `value` as it is.

    A choice, not a product with zero, which a NaN or an infinity would survive.
    """
    if reset is None:
        return value
    return tirx.Select(reset[where] != const(0, "int8"), const(0, tir.dtype_of(value)), value)


class Cells:
    """An array while a loop is written; what is read is widened, what is written is narrowed.

    Indices may be grouped: ``X[lane, t]``, where `lane` is a tuple of them.

    Parameters
    ----------
    buffer : Var
        The array.
    dtype : str
        In which its cells are read.
    """

    def __init__(self, buffer: Var, dtype: str) -> None:
        self.buffer, self.dtype = buffer, dtype
        self._stored, self._axes = tir.dtype_of(buffer), len(tir.shape_of(buffer))

    def __getitem__(self, where: Any) -> Expr:
        return cast(self.buffer[tuple(_indices(where, self._axes))], self.dtype)

    def __setitem__(self, where: Any, value: Any) -> None:
        T.buffer_store(self.buffer, cast(value, self._stored), _indices(where, self._axes))


def _indices(where: Any, axes: int) -> list[Any]:
    """Indices, some of which may be tuples of them; without lanes, those of the only cell."""

    def flat(value: Any) -> list[Any]:
        return (
            [i for part in value for i in flat(part)]
            if isinstance(value, (tuple, list))
            else [value]
        )

    return flat(where) or [0] * axes


class Loop:
    """A function of TensorIR while it is written; after the ``with`` it is `func`."""

    func: tirx.PrimFunc

    def __init__(self) -> None:
        self._builder, self._open = IRBuilder(), ExitStack()
        self._lanes: list[tuple[str, Any, Var]] = []

    def __enter__(self) -> Loop:
        self._open.enter_context(self._builder)
        self._open.enter_context(T.prim_func(s_tir=True))
        T.func_name("main")
        T.func_attr(ATTRS)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)
        if error[0] is None:
            self.func = self._builder.get()

    def array(self, name: str, shape: Index, dtype: str, read_as: str | None = None) -> Cells:
        """Add an array to the parameters.

        Parameters
        ----------
        name : str
            Its name.
        shape : sequence of Expr or int
            Its extents; of a symbolic one that no array before it has, it says what it is.
        dtype : str
            Its dtype.
        read_as : str, optional
            The dtype to which cells are widened where they are read; without it, its own.
        """
        return Cells(T.arg(name, T.Buffer(tuple(shape), dtype)), read_as or dtype)

    def number(self, name: str, value: Any = None, dtype: str = "int64") -> Expr:
        """Add a number to the parameters; one that is a constant already is none."""
        if isinstance(value, tirx.IntImm):
            return value
        return T.arg(name, tirx.Var(name, dtype) if value is None else value)

    def state(self, shape: Index, dtype: str, name: str = "state") -> Cells:
        """Allocate what lanes carry from step to step, or another array beside the parameters."""
        return self._allocated(tuple(shape) or (1,), dtype, name, "global")

    def cell(self, name: str, dtype: str, count: int = 1, scope: str = "global") -> Cells:
        """Allocate `count` cells for one execution of the block that is being written."""
        return self._allocated((count,), dtype, name, scope)

    def scratch(self, name: str, dtype: str, count: int = 1) -> Cells:
        """Allocate `count` cells here, in code that is compiled as it is written.

        A statement, which TVM leaves where it is. What a block allocates (`cell`) can be rewritten
        by schedules; TVM finds anew where to allocate it, and what is read and written around it.
        """
        buffer = T.alloc_buffer((count,), dtype)
        IRBuilder.name(name, buffer)
        return Cells(buffer, dtype)

    def _allocated(self, shape: Index, dtype: str, name: str, scope: str) -> Cells:
        buffer = T.sblock_alloc_buffer(shape, dtype, scope=scope)
        IRBuilder.name(name, buffer)
        return Cells(buffer, dtype)

    @contextmanager
    def lanes(self, names: str, *extents: Any) -> Iterator[None]:
        """Loop over lanes, which `begin` and `steps` then are written for; names have a letter."""
        with self.grid(names, *extents) as loops:
            self._lanes = list(zip(names, extents, loops, strict=True))
            yield

    def _lane(self) -> tuple[Var, ...]:
        axes = []
        for name, extent, loop in self._lanes:
            axes.append(T.axis.spatial(extent, loop))
            IRBuilder.name(f"v{name}", axes[-1])
        return tuple(axes)

    @contextmanager
    def begin(self, name: str = "init") -> Iterator[tuple[Var, ...]]:
        """Write what a lane does before its first step, given its indices."""
        with T.sblock(name):
            yield self._lane()

    @contextmanager
    def steps(self, length: Any, name: str = "scan") -> Iterator[tuple[tuple[Var, ...], Var]]:
        """Write a step of a lane, given its indices and the number of the step."""
        with T.serial(length) as t:
            IRBuilder.name("t", t)
            with T.sblock(name):
                lane = self._lane()
                step = T.axis.scan(length, t)
                IRBuilder.name("vt", step)
                yield lane, step

    @contextmanager
    def grid(self, names: str, *extents: Any) -> Iterator[tuple[Var, ...]]:
        """Loop over several extents inside of a block; names have a letter."""
        with ExitStack() as stack:
            loops: Any = stack.enter_context(T.grid(*extents)) if extents else ()
            several = (loops,) if isinstance(loops, Var) else tuple(loops)
            for name, loop in zip(names, several, strict=True):
                IRBuilder.name(name, loop)
            yield several

    @contextmanager
    def block(self, name: str, reads: Sequence[Cells], writes: Sequence[Cells]) -> Iterator[None]:
        """Write a block that has all loops inside, and what it reads and writes as a whole."""
        with T.sblock("root"):
            T.reads([])
            T.writes([])
            with T.sblock(name):
                T.reads([_whole(cells.buffer) for cells in reads])
                T.writes([_whole(cells.buffer) for cells in writes])
                yield

    @contextmanager
    def over(self, extent: Any, name: str = "n", kind: Any = T.serial) -> Iterator[Var]:
        """Loop inside of a block, of kind ``T.serial``, ``T.vectorized`` or ``T.parallel``."""
        with kind(extent) as var:
            IRBuilder.name(name, var)
            yield var

    @contextmanager
    def vectors(
        self, extent: Any, width: int, names: str = "mx", kind: Any = T.serial
    ) -> Iterator[tuple[Var, Expr]]:
        """Loop over cells in vectors: where each stands in its vector, and among all."""
        vectors = self.over(extent // width, names[0], kind)
        with vectors as vector, self.over(width, names[1], T.vectorized) as cell:
            yield cell, vector * width + cell

    def value(self, name: str, value: Expr) -> Var:
        """Compute a value once, here; an expression is computed anew wherever it stands."""
        var = T.bind(value)
        IRBuilder.name(name, var)
        return var

    def ask(self, cell: Expr, written: bool = False) -> None:
        """Ask for the line of a cell of an array, which is read or `written` some time later.

        Into the first cache: of two heads of 8192 x 128, whose rows lie side by side and which two
        cores of a Zen 5 take, the lines that were only in the second cache came late (5.6 ms
        instead of 3.7; one core 8.1 and 8.1).
        """
        T.evaluate(tir.prefetch(cell, cache=1, written=written))

    @contextmanager
    def parallel(self, extent: Any, name: str, kind: Any = T.parallel) -> Iterator[Var]:
        """Write a block whose executions are independent, given its index."""
        with kind(extent) as loop, T.sblock(name):
            IRBuilder.name("r", loop)
            index = T.axis.spatial(extent, loop)
            IRBuilder.name("vr", index)
            yield index


def _whole(buffer: Var) -> Any:
    return buffer[tuple(slice(tir.zero_like(extent), extent) for extent in tir.shape_of(buffer))]
