"""onnxruntime's CumSum, on the arrays themselves."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

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
    installed = all(map(importlib.util.find_spec, ("onnx", "onnxruntime")))
    if kind not in ("cumsum", "cumsum rows") or not installed:
        return {}
    import onnxruntime
    from onnx import TensorProto, helper

    x, out = arrays["X"], arrays["out"]
    node = helper.make_node("CumSum", ["X", "axis"], ["Y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(x.shape)) for name in "XY"]
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [0 if kind.endswith("rows") else 1])
    graph = helper.make_graph([node], "cumsum", infos[:1], infos[1:], [axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("TVM_NUM_THREADS", 0))
    # A pool that spins between calls takes the cores from whoever is timed next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    binding.bind_input("X", "cpu", 0, np.float32, list(x.shape), x.ctypes.data)
    binding.bind_output("Y", "cpu", 0, np.float32, list(out.shape), out.ctypes.data)

    def run(kept: tuple[np.ndarray, ...] = (x, out)) -> None:  # the binding has addresses alone
        session.run_with_iobinding(binding)

    return {"onnxruntime": run}
