"""Names of kernels: which loop, with which constants, over which extents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KernelSpec:
    """One kernel of `tvm_scan.loops`.

    Attributes
    ----------
    factory : str
        Name of the function in ``tvm_scan.loops`` that writes the sequential loop.
    options : tuple
        Its keyword arguments as pairs, constants of the kernel.
    sizes : tuple of str
        The names of its symbolic extents, in the order in which calls give them.
    or_serial : bool
        Whether a loop that is no provable scan runs as it is, instead of being refused.
    no_scan : bool
        Whether the loop is known to be none, so that there is nothing to plan but what it decides.
    decided_by : str
        Of such a loop, the module of ``tvm_scan.schedules`` whose ``decide`` returns the options
        that are left open, for sizes, a target and a plan from records; none without it.
    measured_as : KernelSpec, optional
        Of such a loop, the kernel over the same sizes whose loop is searched in its place: what is
        recorded of that one decides here.
    """

    factory: str
    options: tuple[tuple[str, Any], ...]
    sizes: tuple[str, ...]
    or_serial: bool = False
    no_scan: bool = False
    decided_by: str = ""
    measured_as: KernelSpec | None = None

    def __post_init__(self) -> None:
        # Asked at every call.
        parts = (self.factory, self.options, self.sizes, self.or_serial, self.no_scan)
        object.__setattr__(self, "_hash", hash((*parts, self.decided_by, self.measured_as)))

    def __hash__(self) -> int:
        # Set past the dataclass, which is frozen, and of which it is no field.
        return self._hash  # type: ignore[attr-defined, no-any-return]

    @classmethod
    def of(cls, factory: str, sizes: tuple[str, ...], **options: Any) -> KernelSpec:
        """Name a kernel by its options in any order."""
        return cls(factory, tuple(sorted(options.items())), sizes)

    def text(self) -> str:
        """Describe the kernel in a line."""
        shown = [f"{k}={v}" for k, v in self.options if v is not False and len(str(v)) < 40]
        return f"{self.factory}({', '.join(shown)})"


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype of torch, as loops and TVM have it."""
    return str(dtype).removeprefix("torch.")
