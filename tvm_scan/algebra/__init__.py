"""Families of step functions that are closed under composition."""

from tvm_scan.algebra.affine import Affine
from tvm_scan.algebra.base import Algebra, classify
from tvm_scan.algebra.reduce import Reduce

__all__ = ["FAMILIES", "Affine", "Algebra", "Reduce", "classify"]

#: Tried in order; the first family that proves the step is taken. Cheapest element first.
FAMILIES: tuple[type[Algebra], ...] = (Reduce, Affine)
