"""Work of a step on a CPU, counted in its statements and in the formulas of its algebras."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import compress
from math import prod
from operator import and_
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Var
from tvm.ir.expr import TensorLoad

from tvm_scan import tir
from tvm_scan.algebra.base import Element, Plain
from tvm_scan.algebra.literal import is_float
from tvm_scan.extraction.nest import linear_in
from tvm_scan.recurrence import Group, Recurrence
from tvm_scan.schedules.common.branches import branches, choices_as_selects, readable
from tvm_scan.schedules.common.ends import steps_between
from tvm_scan.schedules.common.sizes import known_extent
from tvm_scan.schedules.common.strides import time_is_outside
from tvm_scan.schedules.cpu.cost.count import Counts, Path, chain_of, count, sum_of
from tvm_scan.schedules.cpu.vector_math import has_transcendentals, hoist_first_iteration
from tvm_scan.schedules.cpu.vector_values import variables
from tvm_scan.schedules.machine.cpu_chip import CpuChip

#: Cells of halves of which a processor learns what is chosen where a call makes each, and how much
#: longer the calls of more take: moving averages of 3000 halves without F16C take a Zen 4 29 cycles
#: a step in scalar code and 15 in vectors of time, of 30000 43 and 25.
_CALLS_LEARNT, _CALLS_FORGOTTEN = 2e4, 1.6


@dataclass(frozen=True, eq=False)
class Access:
    """A load or store of a step that goes to memory.

    Attributes
    ----------
    buffer : Var
        The array.
    size : int
        Bytes of a cell.
    store : bool
        Whether it is written.
    along_time, along_lane : int or None
        Cells between neighbouring steps, and between neighbouring lanes; None where unknown.
    times : float
        How often a step makes it, over its state.
    """

    buffer: Var
    size: int
    store: bool
    along_time: int | None
    along_lane: int | None
    times: float

    @property
    def fixed(self) -> bool:
        """Return whether a whole lane reads one cell, which stays in a register."""
        return self.along_time == 0 and not self.store

    @property
    def issued(self) -> float:
        """Instructions that a step has for it: a load is most often an operand of another."""
        return self.times * (1.0 if self.store else 0.5)


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


@dataclass(frozen=True, eq=False)
class Step:
    """All that is counted of a recurrence.

    Attributes
    ----------
    rows, length, lanes : int
        All lanes, steps, lanes of the innermost axis.
    body : Counts
        Of a step.
    chain, scalar_chain : Path
        The longest path from a carry to the next one, in vectors and in scalar code.
    accesses : tuple of Access
        Of a step.
    parts : tuple of Part
        For each group.
    loads, stores : float
        Bytes that are read of all arrays, and that are written.
    """

    rows: int
    length: int
    lanes: int
    body: Counts
    chain: Path
    scalar_chain: Path
    accesses: tuple[Access, ...]
    parts: tuple[Part, ...]
    loads: float
    stores: float
    lanes_inside: bool
    guarded: bool
    in_vectors: bool
    integers: bool
    transcendental: bool
    state: bool
    backwards: bool
    history: bool
    overlaps: bool

    @cached_property
    def moving(self) -> tuple[Access, ...]:
        """Return the accesses that go to memory at every step."""
        return tuple(a for a in self.accesses if not a.fixed)

    @cached_property
    def rows_apart(self) -> tuple[Access, ...]:
        """Return the accesses along time whose lanes are rows apart."""
        return tuple(
            a for a in self.moving if a.along_time in (1, -1) and a.along_lane not in (0, 1)
        )

    @property
    def touched(self) -> float:
        """Bytes of all arrays, read or written."""
        return self.loads + self.stores

    @property
    def is_long(self) -> bool:
        """Return whether a state or polynomials make it longer than a processor looks ahead."""
        return self.state or self.transcendental


def step_of(recurrence: Recurrence, steps: int | None = None) -> Step:
    """Count a recurrence of so many steps; what is not known until run time is one number."""
    known = _counted(recurrence)
    if steps is None:
        return known
    length = max(1, steps)
    part = length / known.length
    return replace(known, length=length, loads=known.loads * part, stores=known.stores * part)


def with_halves(step: Step, chip: CpuChip) -> CpuChip:
    """The chip, on which halves take longer where it has not learnt what their calls choose."""
    if not (chip.halves and step.body.halves) or step.rows * step.length <= _CALLS_LEARNT:
        return chip
    return replace(chip, halves=chip.halves * _CALLS_FORGOTTEN)


@lru_cache(maxsize=256)
def _counted(recurrence: Recurrence) -> Step:
    length = known_extent(recurrence.time.extent)
    steady = steps_between(recurrence.time.var, length)
    # An empty loop is counted as one step: what is chosen for it does not matter.
    extents = [max(1, known_extent(axis.extent)) for axis in recurrence.lanes]
    chain, scalar_chain = (
        max(
            (
                chain_of(steady(carry.step), olds, scalar=scalar)
                for group in recurrence.groups
                for olds in [[recurrence.carries[c].old for c in group.carries]]
                for carry in (recurrence.carries[c] for c in group.carries)
            ),
            key=lambda c: c.weight,
        )
        for scalar in (False, True)
    )
    accesses = tuple(_accesses(recurrence))
    written = tir.VarMap((b, True) for b in recurrence.outputs)
    read = [b for b in recurrence.inputs if b not in written]
    rows = prod(extents)

    def touched(buffers: list[Var]) -> float:
        """Bytes of arrays; of one that only steps look at, no more than they do."""
        total = 0.0
        for buffer in tir.VarMap((b, True) for b in buffers).keys():
            each = sum(a.times * a.size for a in accesses if a.buffer.same_as(buffer))
            most = each * rows * max(1, length)
            total += min(_size(buffer), most) if most else _size(buffer)
        return total

    return Step(
        rows=rows,
        length=max(1, length),
        lanes=extents[-1] if extents else 1,
        body=count(steady(recurrence.body)),
        chain=chain,
        scalar_chain=scalar_chain,
        accesses=accesses,
        parts=tuple(_part(recurrence, group, steady) for group in recurrence.groups),
        loads=touched(read),
        stores=touched(list(written.keys())),
        lanes_inside=time_is_outside(recurrence),
        in_vectors=_stays_in_vectors(recurrence),
        guarded=_is_guarded(recurrence.body),
        integers=not any(is_float(d) for g in recurrence.groups for d in g.algebra.dtypes),
        transcendental=has_transcendentals(recurrence),
        state=any(carry.state_axes for carry in recurrence.carries),
        backwards=any((a.along_time or 0) < 0 for a in accesses),
        history=any(carry.register.timed for carry in recurrence.carries),
        overlaps="tirx.noalias" not in (recurrence.func.attrs or {}),
    )


def _size(buffer: Var) -> float:
    cells = prod(known_extent(extent) for extent in tir.shape_of(buffer))
    return float(cells * tir.byte_size(tir.dtype_of(buffer)))


def _part(recurrence: Recurrence, group: Group, steady: Callable[[Any], Any]) -> Part:
    algebra = group.algebra
    first, second = (variables(side, algebra.dtypes) for side in "lr")
    olds = variables("h", [recurrence.carries[c].dtype for c in group.carries])
    plain = algebra.plainly() or algebra
    lifted = [steady(part) for part in algebra.lift()]
    combined = plain.combine(first, second)
    applied, extended = plain.apply(first, olds), algebra.extend(first, second)
    varying = _varying(lifted, combined, (first, second))
    if isinstance(plain, Plain) and plain.each is not None:
        # What the test of all steps alone reads is not scanned.
        read = _read(applied, combined, first)
        varying = [v and r for v, r in zip(varying, read, strict=True)]
    return Part(
        combine=sum_of(compress(_of_numbers(combined, varying, (first, second)), varying)),
        apply=sum_of(_of_numbers(applied, varying, (first,))),
        extend=sum_of(extended),
        lift=sum_of(lifted),
        apply_chain=max((chain_of(e, olds) for e in applied), key=lambda c: c.weight),
        extend_chain=max((chain_of(e, first) for e in extended), key=lambda c: c.weight),
        # Parts that are numbers stay numbers, which LLVM knows.
        sizes=tuple(
            tir.byte_size(d) for d, varies in zip(algebra.dtypes, varying, strict=True) if varies
        ),
        carries=tuple(tir.byte_size(recurrence.carries[c].dtype) for c in group.carries),
        cells=prod(known_extent(axis.extent) for axis in recurrence.state_axes(group)),
    )


def _varying(lifted: list[Any], combined: Element, sides: tuple[Element, ...]) -> list[bool]:
    """Return whether each part of an element differs from the same of steps elsewhere in time."""
    numbers = tirx.FloatImm | tirx.IntImm
    varying = [not isinstance(tir.simplify(part), numbers) for part in lifted]
    used, parts = map(tir.variables, combined), list(zip(*sides, strict=True))
    return _spread(varying, [[any(v in names for v in part) for part in parts] for names in used])


def _read(applied: Element, combined: Element, first: Element) -> list[bool]:
    """Return whether each part of an element reaches a carry."""
    read, used = tir.variables(list(applied)), [tir.variables(e) for e in combined]
    return _spread([v in read for v in first], [[v in names for names in used] for v in first])


def _spread(marks: list[bool], links: list[list[bool]]) -> list[bool]:
    """Mark each part that is linked to one that is marked, until no other one is."""
    while True:
        wider = [m or any(map(and_, row, marks)) for m, row in zip(marks, links, strict=True)]
        if wider == marks:
            return marks
        marks = wider


def _of_numbers(element: Element, varying: list[bool], sides: tuple[Element, ...]) -> list[Any]:
    """The parts of an element, over numbers for those of its sides that do not vary.

    What LLVM knows of them it leaves out.
    """
    numbers = tir.VarMap()
    for side in sides:
        for part, varies in zip(side, varying, strict=True):
            if not varies:
                dtype = tir.dtype_of(part)
                numbers[part] = tirx.const(0.5 if is_float(dtype) else 3, dtype)
    return [tir.simplify(tir.substitute(e, numbers)) if numbers else e for e in element]


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
        key = (str(buffer.name), store, *(int(tvm_ffi.structural_hash(i)) for i in indices))
        if key in out:
            return
        along_lane = 0 if one_lane else strides(buffer, indices, lane)
        size = tir.byte_size(tir.dtype_of(buffer))
        out[key] = Access(buffer, size, store, strides(buffer, indices, time), along_lane, times)

    def visit(stmt: Any, around: list[tirx.For]) -> None:
        skip = tvm_ffi.WalkResult.SKIP

        def times(loops: Iterable[tirx.For]) -> float:
            return float(prod(known_extent(loop.extent) for loop in loops))

        def on_loop(loop: tirx.For) -> Any:
            visit(loop.body, [*around, loop])
            return skip

        def on_load(load: TensorLoad) -> None:
            # What a loop over the state does not move stays in a register.
            used = tir.variables(list(load.indices)) if around else ()
            moving = times(loop for loop in around if loop.loop_var in used)
            add(load.source, list(load.indices), moving, False)

        handlers: list[Any] = [
            (tirx.For, on_loop),
            (TensorLoad, on_load),
            (tirx.BufferStore, lambda n: add(n.buffer, list(n.indices), times(around), True)),
        ]
        tvm_ffi.structural_walk(stmt, handlers, order="pre")

    visit(recurrence.body, [])
    return list(out.values())


def _is_guarded(body: Any) -> bool:
    """Return whether a value that was read chooses what is read."""
    choices = [c for c in tir.nodes(body, Call) if tir.call_name(c) == "prim.if_then_else"]
    return any(str(x.source.scope()) != "local" for c in choices for x in tir.loads(c.args[0]))


def _stays_in_vectors(recurrence: Recurrence) -> bool:
    """Return whether the builder makes a vector loop of a step: without a choice between reads."""
    hoisted = hoist_first_iteration(recurrence.body)
    if not branches(hoisted):
        return True
    registers = [buffer for r in recurrence.registers for buffer in (r.local, *r.previous)]
    known = [*registers, *readable(recurrence)]
    return not branches(choices_as_selects(hoisted, known))
