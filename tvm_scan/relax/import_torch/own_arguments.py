"""Arguments of the operators of ``tvm_scan.torch``, as their loops take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.relax.operators import viewed
from tvm_scan.relax.repairs.torch_casts import arguments_by_name


def arguments_of(node: Any, importer: Any) -> dict[str, Any]:
    """Arguments of a call by name, with what the importer has made of its tensors."""

    def resolved(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [resolved(item) for item in value]
        if hasattr(value, "op"):
            _check_real(node, value)
            return importer.env[value]
        return value

    return {name: resolved(value) for name, value in arguments_by_name(node).items()}


def present(arguments: dict[str, Any], *names: str) -> list[Any]:
    """Return the arguments of some names that a call has, in their order."""
    return [arguments[name] for name in names if arguments[name] is not None]


def _check_real(node: Any, value: Any) -> None:
    if getattr(value.meta.get("val"), "is_complex", bool)():
        raise ScanError(
            f"from_exported: expected real tensors in {node.target}, found complex ones, which TVM "
            "does not have; write the recurrence in real and imaginary parts"
        )


def extent(value: Any, name: str) -> Any:
    """A constant, or a variable of the loop's own: those of the module are bound by the call."""
    known = tir.as_int(value)
    return tirx.Var(name, "int64") if known is None else tirx.IntImm("int64", known)


def sizes_of(value: relax.Expr, names: Sequence[str]) -> list[Any]:
    """Extents of a tensor, each under a name where it is no constant."""
    return [extent(n, name) for n, name in zip(value.ty.shape.values, names, strict=True)]


class Frame:
    """Arrays (outer, length, inner) as the loops want them: time last where inner is 1."""

    def __init__(self, importer: Any, x: relax.Expr) -> None:
        self._builder = importer.block_builder
        self._shape = list(x.ty.shape.values)
        outer, length, inner = self._shape
        self.time_last = tir.as_int(inner) == 1
        if self.time_last:
            outer, inner = tirx.IntImm("int64", 1), outer
        self._sides = [outer, inner, length]
        names = ("outer", "inner", "length")
        self.sizes = tuple(extent(n, name) for n, name in zip(self._sides, names, strict=True))

    def array(self, value: relax.Expr) -> relax.Expr:
        """An array with time."""
        outer, inner, length = self._sides
        shape = [outer, inner, length] if self.time_last else [outer, length, inner]
        return viewed(self._builder, value, shape)

    def state(self, value: relax.Expr) -> relax.Expr:
        """An array without time."""
        return viewed(self._builder, value, self._sides[:2])

    def whole(self, value: relax.Expr) -> relax.Expr:
        """A result with time, in the shape of the operator."""
        return viewed(self._builder, value, self._shape)

    def last(self, value: relax.Expr) -> relax.Expr:
        """A result without time, in the shape of the operator."""
        return viewed(self._builder, value, [self._shape[0], self._shape[2]])
