"""Tiles of a chunk for tensor cores: which warp has which, and where a thread's cells are.

A warp has 16 columns of the state and some of its rows, in its registers, as a fragment of sums of
``S^T`` (columns by rows): its thread 4 g + f has columns g and g + 8, and of every 8 rows 2 f and
2 f + 1. In which order the terms of a product stand is free. Taken as terms f and f + 4, rows 2 f
and 2 f + 1 make of the same registers a fragment of A, so that the state is multiplied where it
lies, and a thread's two cells of B are neighbours in memory.

The vectors of the steps stand in shared memory, ``stride`` cells from one to the next: 8 or 24 more
than a multiple of 32. The loads of a fragment then meet in no bank: of two neighbours, 16 threads
at once, 4 vectors 8 cells each; of single cells, 4 vectors of 8.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import Var
from tvm.tirx import FloatImm

from tvm_scan import tir
from tvm_scan.delta_rule import DeltaRule

#: Steps, or rows, of a tile; columns of a warp.
OCTET, ACROSS = 8, 16
#: Steps of a chunk, the most first.
TENSOR_STEPS = (16, 8)
#: Products of forward substitution, which is written out: ptxas takes long for more.
MOST_IN_LINE = 2048


@dataclass(frozen=True)
class Tiles:
    """Sizes of a block.

    Attributes
    ----------
    warps, groups : int
        Warps of the block, and how many share the rows: two have the same ones.
    depth, per_group : int
        Rows with their padding, and tiles of 8 of them that a warp has.
    stride : int
        Cells from vector to vector.
    """

    warps: int
    groups: int
    depth: int
    per_group: int
    stride: int

    @staticmethod
    def of(rows: int, threads: int) -> Tiles:
        """Divide rows among the warps of a block."""
        warps = threads // 32
        groups = warps // 2
        per_group = -(-rows // (OCTET * groups))
        depth = per_group * OCTET * groups
        return Tiles(warps, groups, depth, per_group, depth + (0 if depth % 16 else OCTET))


@dataclass(frozen=True, eq=False)
class Octet:
    """Eight steps of one array of vectors.

    Attributes
    ----------
    number : int
        Of the array, among those that read, or among the terms.
    vectors : Var
        The array.
    first : int
        First of the steps.
    """

    number: int
    vectors: Var
    first: int


def octets_of(arrays: list[Var], steps: int) -> list[Octet]:
    """All octets of arrays, the first steps of all of them before the next."""
    return [
        Octet(number, array, first)
        for first in range(0, steps, OCTET)
        for number, array in enumerate(arrays)
    ]


def pairs_of(octets: list[Octet]) -> list[tuple[Octet, ...]]:
    """Octets two by two, as a fragment of A has them; the last one may stand alone."""
    return [tuple(octets[at : at + 2]) for at in range(0, len(octets), 2)]


def products_in_line(rule: DeltaRule, steps: int) -> int:
    """Products of forward substitution: of every two steps, for each term that reads another."""
    return len(rule.reading) * len(rule.terms) * steps * (steps - 1) // 2


def is_uniform(rule: DeltaRule) -> bool:
    """Return whether all rows of a state have one gate."""
    return not tir.contains_var(rule.gate, [rule.rows.var])


def is_gated(rule: DeltaRule) -> bool:
    """Return whether there are gates of the rows at all."""
    return not (isinstance(rule.gate, FloatImm) and float(rule.gate.value) == 1)
