"""What people would pick on a CPU instead, each at its best setting."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.cpu_c import c_calls
from bench.cpu_jax import jax_calls
from bench.cpu_numba import numba_calls
from bench.cpu_onnxruntime import onnxruntime_calls
from bench.cpu_stl import stl_calls
from bench.cpu_torch import torch_calls

__all__ = ["PEERS"]

Call = Callable[[], Any]
Arrays = Mapping[str, np.ndarray]


def _numpy(kind: str, arrays: Arrays) -> dict[str, Call]:
    functions = {"cumsum": np.cumsum, "cumsum rows": np.cumsum, "cummax": np.maximum.accumulate}
    functions["logsumexp"] = np.logaddexp.accumulate
    run, axis = functions.get(kind), 0 if kind.endswith("rows") else -1
    if run is None:
        return {}
    return {"numpy": lambda: run(arrays["X"], axis=axis, out=arrays["out"])}


def _scipy(kind: str, arrays: Arrays) -> dict[str, Call]:
    poles = {"cumsum": [1, -1], "order 2": [1, -1.6, 0.7]}.get(kind)
    try:
        signal = importlib.import_module("scipy.signal")
    except ImportError:
        return {}
    if poles is None:
        return {}
    taps = np.ones(1, "float32"), np.array(poles, "float32")
    return {"scipy lfilter": lambda: signal.lfilter(*taps, arrays["X"], axis=-1)}


#: By tool: the calls of a kind of workload on its arrays (inputs, and ``out`` to write to; float32
#: or bfloat16, C-contiguous), with ``torch.compile`` or without. None where it is not installed.
PEERS: dict[str, Callable[[str, Arrays, bool], dict[str, Call]]] = {
    "numpy": lambda kind, arrays, _: _numpy(kind, arrays),
    "torch": torch_calls,
    "jax": lambda kind, arrays, _: jax_calls(kind, arrays),
    "scipy": lambda kind, arrays, _: _scipy(kind, arrays),
    "C": lambda kind, arrays, _: c_calls(kind, arrays),
    "STL": lambda kind, arrays, _: stl_calls(kind, arrays),
    "onnxruntime": lambda kind, arrays, _: onnxruntime_calls(kind, arrays),
    "numba": lambda kind, arrays, _: numba_calls(kind, arrays),
}
