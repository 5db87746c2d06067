"""The loops of ``tvm_scan.torch`` that are tuned: common shapes of its functions, both ways.

A function looks its plan up by the loop and by powers of two of its sizes, so that these sizes are
powers of two.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

__all__ = ["TORCH_WORKLOADS", "torch_loop"]

_FRAME = ("outer", "inner", "length")
_SELECTIVE = ("batch", "groups", "channels", "length", "steps")
_MATRIX = ("batch", "heads", "lanes", "length")
_SIZES = {
    "selective_forward": _SELECTIVE,
    "selective_backward_chunk": _SELECTIVE,
    "outer_products": _MATRIX,
}

_BASE = {"dtype": "float32", "reverse": False}
_ROWS = {**_BASE, "time_last": True}
_BACK = {"reverse": True}
_SUM = {**_ROWS, "op": "add", "exclusive": False}
_SCAN = {**_ROWS, "emit": "inclusive", "has_initial": False, "has_reset": False}
_LATE = {**_SCAN, **_BACK, "emit": "late"}
_INSIDE = {"time_last": False}
_MATRICES = {**_BASE, "states": 64, "emit": "inclusive", "has_reset": False}
_LAYER = {"softplus": True, "has_bias": True, "has_D": True, "has_z": True, "has_reset": False}
_MAMBA = {**_BASE, **_LAYER, "states": 16}
_ROW, _FEW, _MANY = (1, 1, 1 << 16), (1, 64, 4096), (1, 512, 4096)
_CHANNELS = (2, 1024, 1024)

#: Name (what follows the factory says which it is), sizes, options.
TORCH_WORKLOADS: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...] = (
    *(("torch:cumulative sum", s, _SUM) for s in (_ROW, _FEW, _MANY)),
    ("torch:cumulative sum back", _FEW, {**_SUM, **_BACK}),
    ("torch:cumulative sum channels", _CHANNELS, {**_SUM, **_INSIDE}),
    ("torch:cumulative product", _FEW, {**_SUM, "op": "mul"}),
    ("torch:extremum", _FEW, {**_ROWS, "smallest": False}),
    ("torch:logcumsumexp", _FEW, _ROWS),
    *(("torch:affine", s, _SCAN) for s in (_ROW, _FEW, _MANY)),
    *(("torch:affine back", s, _LATE) for s in (_ROW, _FEW, _MANY)),
    ("torch:affine channels", _CHANNELS, {**_SCAN, **_INSIDE}),
    ("torch:affine channels back", _CHANNELS, {**_LATE, **_INSIDE}),
    ("torch:selective_forward", (1, 1, 1024, 2048, 1024), _MAMBA),
    ("torch:selective_forward chunk", (1, 1, 1024, 2048, 32), _MAMBA),
    ("torch:selective_backward_chunk", (1, 1, 1024, 2048, 32), {**_MAMBA, "sums": True}),
    ("torch:outer_products gla", (1, 4, 64, 1024), {**_MATRICES, "gate": "state"}),
    (
        "torch:outer_products gla back",
        (1, 4, 64, 1024),
        {**_MATRICES, **_BACK, "gate": "state", "emit": "late"},
    ),
    ("torch:outer_products ssd", (1, 8, 64, 1024), {**_MATRICES, "gate": "head"}),
)


def torch_loop(factory: str, sizes: tuple[int, ...], options: dict[str, Any]) -> tirx.PrimFunc:
    """Return the loop of a kernel with constants for all that its calls give as numbers."""
    from tvm_scan.torch.kernels.building import loop_of
    from tvm_scan.torch.kernels.records import without_numbers
    from tvm_scan.torch.kernels.spec import KernelSpec

    names = _SIZES.get(factory, _FRAME)
    return without_numbers(
        loop_of(KernelSpec(factory, tuple(sorted(options.items())), names), sizes)
    )
