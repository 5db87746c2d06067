"""Mutants: a program with one operator, operand order or index changed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from tests.programs.suite.program import Program, Range, arguments
from tests.programs.suite.running import agree, run_loop, run_scan, without_threads
from tvm_scan import Recurrence, extract, tir

__all__ = ["Mutant", "Verdict", "judge", "mutants"]

_SWAPS: dict[Any, tuple[Any, ...]] = {
    tirx.Add: (tirx.Sub, tirx.Mul, tirx.Max),
    tirx.Sub: (tirx.Add, tirx.Min),
    tirx.Mul: (tirx.Add, tirx.Max),
    tirx.Max: (tirx.Min, tirx.Add),
    tirx.Min: (tirx.Max, tirx.Sub),
    tirx.GT: (tirx.LT, tirx.GE),
    tirx.LT: (tirx.GT, tirx.LE),
    tirx.EQ: (tirx.NE,),
    tirx.And: (tirx.Or,),
    tirx.Or: (tirx.And,),
    tirx.BitwiseAnd: (tirx.BitwiseOr, tirx.BitwiseXor),
    tirx.BitwiseOr: (tirx.BitwiseAnd, tirx.BitwiseXor),
    tirx.BitwiseXor: (tirx.BitwiseAnd, tirx.BitwiseOr),
}


@dataclass(frozen=True)
class Mutant:
    """A changed program, and what was changed in words."""

    func: tirx.PrimFunc
    change: str


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Attributes
    ----------
    accepted : bool
        Whether it was taken for a recurrence.
    right : bool
        Whether its scan computed what its loop computes; True where it was refused.
    compared : int
        Values of its outputs that were compared.
    """

    accepted: bool
    right: bool
    compared: int


def mutants(func: tirx.PrimFunc, count: int, seed: int | str) -> Iterator[Mutant]:
    """Change ``func`` in ``count`` random places, one at a time.

    Parameters
    ----------
    func : PrimFunc
        A program of the suite.
    count : int
        How many mutants; fewer where there are fewer changes.
    seed : int or str
        Of the choices.
    """
    choice = random.Random(seed)
    places = _places(func)
    seen: set[str] = set()
    for _ in range(4 * count if places else 0):
        made = _changed(func, choice.randrange(places), choice)
        if made.change in seen:
            continue
        seen.add(made.change)
        yield made
        if len(seen) == count:
            return


def judge(program: Program, mutant: Mutant, seed: int = 0) -> Verdict:
    """Extract a mutant, and compare its scan with its own loop if it is taken.

    A mutant may be badly conditioned (it divides by a difference, it overflows). So a difference
    counts where the loop's values are finite, and beyond what the loop itself makes of inputs
    that are changed by a millionth. Exact values count where floats hold them and where nothing
    has overflowed, which TVM's code takes for undefined: below 2^24, or 2^52 of 64 bits.
    """
    found = extract(mutant.func)
    if not isinstance(found, Recurrence):
        return Verdict(False, True, 0)
    arrays = _inputs(mutant.func, program.inputs, seed)
    with np.errstate(all="ignore"):
        want = run_loop(mutant.func, arrays)
        got = run_scan(mutant.func, arrays)
        slack = _sensitivity(mutant.func, arrays, want) if program.rounds else [0.0] * len(want)
    compared = 0
    for left, right, loose in zip(got, want, slack, strict=True):
        value, largest = right.astype("float64"), 2**52 if right.dtype.itemsize == 8 else 2**24
        counts = np.isfinite(value) & (np.abs(value) < largest)
        if program.rounds:
            counts &= np.isfinite(left.astype("float64"))
        compared += int(counts.sum())
        left, right = left[counts], right[counts]
        if not agree(left, right, rounds=program.rounds, growth=program.growth, slack=loose):
            return Verdict(True, False, compared)
    return Verdict(True, True, compared)


def _inputs(func: tirx.PrimFunc, ranges: Mapping[str, Range], seed: int) -> list[np.ndarray]:
    # A mutant may multiply where the program adds: small data, so that a float's integers stay
    # exact for longer.
    arrays = arguments(func, ranges, seed)
    return [
        a
        if a.dtype.kind != "f" or isinstance(ranges.get(str(p.name), (0,))[0], float)
        else np.clip(a, -2, 2)
        for a, p in zip(arrays, func.params, strict=True)
    ]


def _sensitivity(
    func: tirx.PrimFunc, arrays: list[np.ndarray], want: list[np.ndarray]
) -> list[float]:
    rng = np.random.default_rng(1)
    moved = [
        a
        if a.dtype.kind in "iub"
        else (a * (1 + 1e-6 * rng.uniform(-1, 1, a.shape))).astype(a.dtype)
        for a in arrays
    ]
    out = []
    for near, exact in zip(run_loop(func, moved), want, strict=True):
        apart = np.abs(near.astype("float64") - exact.astype("float64"))
        out.append(32 * float(apart[np.isfinite(apart)].max(initial=0.0)))
    return out


def _is_place(node: Any) -> bool:
    """Index arithmetic stays, lest the mutant leave its buffers."""
    return not (tir.dtype_of(node).startswith("int") and not tir.loads(node))


def _stores(func: tirx.PrimFunc) -> list[tirx.BufferStore]:
    found: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(func.body, [(tirx.BufferStore, found.append)])
    return found


def _places(func: tirx.PrimFunc) -> int:
    count = 0

    def visit(node: Any) -> None:
        nonlocal count
        count += _is_place(node)

    for store in _stores(func):
        tvm_ffi.structural_walk(store.value, [((*_SWAPS, TensorLoad), visit)])
    return count


def _changed(func: tirx.PrimFunc, place: int, choice: random.Random) -> Mutant:
    seen = 0
    change = ""

    def at(node: Any) -> Any:
        nonlocal seen, change
        if not _is_place(node):
            return node
        seen += 1
        if seen - 1 != place:
            return node
        made = _other(node, choice)
        change = f"{place}: {node} -> {made}"
        return made

    def on_store(store: tirx.BufferStore) -> tirx.BufferStore:
        value = tvm_ffi.structural_map(store.value, ((*_SWAPS, TensorLoad), at))
        return tirx.BufferStore(store.buffer, value, store.indices)

    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, on_store))
    return Mutant(without_threads(func.with_body(body)), change)


def _other(node: Any, choice: random.Random) -> Any:
    if isinstance(node, TensorLoad):
        if not node.indices:
            return node
        indices = list(node.indices)
        dim = choice.randrange(len(indices))
        extent = tir.shape_of(node.source)[dim]
        # Kept inside the buffer, so that the mutant reads nothing foreign. (A wrap-around by
        # floormod would do, but TVM 0.27 compiles (72 - t) % 37 wrongly.)
        if choice.random() < 0.5:
            indices[dim] = tirx.Min(indices[dim] + 1, extent - 1)
        else:
            indices[dim] = tirx.Max(indices[dim] - 1, tir.zero_like(extent))
        return tirx.BufferLoad(node.source, indices)
    if choice.random() < 0.3:
        return type(node)(node.b, node.a)
    return choice.choice(_SWAPS[type(node)])(node.a, node.b)
