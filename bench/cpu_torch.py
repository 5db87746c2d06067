"""The workloads of ``bench.cpu`` in torch, and the selective scan of transformers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["torch_calls", "torch_tensor"]

Call = Callable[[], Any]
Arrays = Mapping[str, np.ndarray]
#: Cells that the compiled scan's temporaries are made for: beyond, they take tens of gigabytes.
_MOST = 1 << 26


def torch_calls(kind: str, arrays: Arrays, compiled: bool) -> dict[str, Call]:
    """Calls by name; none where torch is not installed.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    arrays : mapping of str to ndarray
        Inputs, and ``out`` to write to.
    compiled : bool
        Whether ``torch.compile`` of ``associative_scan`` takes part; every shape takes it half a
        minute to compile.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return {}
    if kind.startswith("selective scan"):
        return _selective(torch, arrays, compiled)
    x, out = torch.from_numpy(arrays["X"]), torch.from_numpy(arrays["out"])
    axis = 0 if kind.endswith("rows") else -1
    if kind.startswith("cumsum"):
        return {"torch": lambda: torch.cumsum(x, axis, out=out)}
    if kind == "logsumexp":
        return {"torch": lambda: torch.logcumsumexp(x, axis, out=out)}
    if kind == "cummax":
        indices = torch.empty(x.shape, dtype=torch.int64)
        return {"torch": lambda: torch.cummax(x, axis, out=(out, indices))}
    if kind.startswith("affine") and compiled:
        return {"torch.compile": _compiled_affine(torch, torch.from_numpy(arrays["A"]), x)}
    return {}


def torch_tensor(torch: Any, array: np.ndarray) -> Any:
    """The array as a tensor that shares its memory; NumPy's bfloat16 is not torch's."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def _compiled_affine(torch: Any, a: Any, x: Any) -> Call:
    scan = importlib.import_module("torch._higher_order_ops.associative_scan").associative_scan

    def combine(left: Any, right: Any) -> Any:
        return right[0] * left[0], right[0] * left[1] + right[1]

    run = torch.compile(lambda p, q: scan(combine, (p, q), dim=1, combine_mode="generic")[1])
    return lambda: run(a, x)


def _selective(torch: Any, arrays: Arrays, compiled: bool) -> dict[str, Call]:
    """``mamba_selective_scan`` of transformers: its loop, and compiled its associative scan."""
    try:
        models = importlib.import_module("transformers.models.mamba.modeling_mamba")
        function = models.mamba_selective_scan
    except (ImportError, AttributeError):
        return {}
    names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")
    given = [torch_tensor(torch, np.ascontiguousarray(arrays[n])) for n in names]

    def loop() -> Any:
        with torch.no_grad():
            return function(*given, delta_softplus=True)

    found = {"transformers": loop}
    if compiled and arrays["u"].size * arrays["A"].shape[1] <= _MOST:
        run = torch.compile(
            lambda *inputs: function(*inputs, delta_softplus=True, use_associative_scan=True)
        )

        def associative() -> Any:
            with torch.no_grad():
                return run(*given)

        found["torch.compile"] = associative
    return found
