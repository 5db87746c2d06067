"""Families of step functions that are closed under composition."""

from tvm_scan.algebra.affine import Affine
from tvm_scan.algebra.automaton import Automaton
from tvm_scan.algebra.base import Algebra, System, classify
from tvm_scan.algebra.bits import Bitwise, Switch
from tvm_scan.algebra.bounded import BoundedAffine
from tvm_scan.algebra.clamp import Clamp
from tvm_scan.algebra.declared import Declared
from tvm_scan.algebra.interleaved import Interleaved
from tvm_scan.algebra.logsumexp import LogSumExp
from tvm_scan.algebra.matrix import Complex, Matrix
from tvm_scan.algebra.modular import Modular
from tvm_scan.algebra.moebius import Moebius
from tvm_scan.algebra.reduce import Reduce
from tvm_scan.algebra.segmented import LateSegmented, Segmented
from tvm_scan.algebra.shifted import Shifted

__all__ = [
    "FAMILIES",
    "Affine",
    "Algebra",
    "Automaton",
    "Bitwise",
    "BoundedAffine",
    "Clamp",
    "Complex",
    "Declared",
    "Interleaved",
    "LogSumExp",
    "Matrix",
    "Modular",
    "Moebius",
    "Reduce",
    "Segmented",
    "Shifted",
    "Switch",
    "System",
    "classify",
]

#: Tried in order; the first family that proves the step is taken. Cheapest element first, except
#: that resets of floats come before gates of zero.
FAMILIES: tuple[type[Algebra], ...] = (
    Segmented,
    Shifted,
    Reduce,
    Affine,
    Bitwise,
    Modular,
    Switch,
    Clamp,
    BoundedAffine,
    LogSumExp,
    Moebius,
    Automaton,
    Complex,
    Matrix,
    Interleaved,
    Declared,
    LateSegmented,
)
