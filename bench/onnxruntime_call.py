"""An operator of onnxruntime on the arrays themselves, without a copy."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["is_installed", "operator_call"]


def is_installed() -> bool:
    """Return whether there are onnxruntime and the package that writes its models."""
    return all(map(importlib.util.find_spec, ("onnx", "onnxruntime")))


def operator_call(
    operator: str,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    *,
    threads: int,
    domain: str = "",
    constants: Mapping[str, int] | None = None,
    **attributes: Any,
) -> Callable[[], None]:
    """Make a call that reads and writes arrays where they lie.

    Parameters
    ----------
    operator : str
        Name of the operator in its domain.
    inputs, outputs : mapping of str to ndarray
        float32, contiguous; by names of the values, in the order of the operator's.
    threads : int
        Of its pool; 0 leaves it to onnxruntime.
    domain : str
        The operator's, ONNX's own if empty.
    constants : mapping of str to int, optional
        Inputs behind those, numbers of int64.
    **attributes
        Of the operator.

    Returns
    -------
    callable
        It keeps the arrays alive: a binding has their addresses alone.
    """
    import onnxruntime
    from onnx import TensorProto, helper

    numbers = {} if constants is None else constants
    node = helper.make_node(operator, [*inputs, *numbers], [*outputs], domain=domain, **attributes)
    fixed = [helper.make_tensor(n, TensorProto.INT64, [], [v]) for n, v in numbers.items()]
    infos = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in arrays.items()]
        for arrays in (inputs, outputs)
    ]
    graph = helper.make_graph([node], operator, *infos, fixed)
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # A pool that spins between calls takes the cores from whoever is timed next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, array in arrays.items():
            bind(name, "cpu", 0, np.float32, list(array.shape), array.ctypes.data)
    alive = (*inputs.values(), *outputs.values())

    def run(_: tuple[np.ndarray, ...] = alive) -> None:
        session.run_with_iobinding(binding)

    return run
