"""onnxruntime's CumSum, on the arrays themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.onnxruntime_call import is_installed, operator_call

__all__ = ["onnxruntime_calls"]

Call = Callable[[], Any]
Arrays = Mapping[str, np.ndarray]


def onnxruntime_calls(kind: str, arrays: Arrays) -> dict[str, Call]:
    """Calls by name; none where onnxruntime or onnx is not installed.

    Parameters
    ----------
    kind : str
        One of ``bench.cpu_loops.KINDS``.
    arrays : mapping of str to ndarray
        ``X`` and ``out`` to write to.
    """
    if kind not in ("cumsum", "cumsum rows") or not is_installed():
        return {}
    call = operator_call(
        "CumSum",
        {"X": arrays["X"]},
        {"Y": arrays["out"]},
        constants={"axis": 0 if kind.endswith("rows") else 1},
        threads=int(os.environ.get("TVM_NUM_THREADS", 0)),
    )
    return {"onnxruntime": call}
