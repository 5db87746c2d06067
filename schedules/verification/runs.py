"""Functions of NumPy's arrays: compiled by TVM, or launched by a driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from tvm_scan.cuda_math import build
from tvm_scan.schedules.launch import launched
from tvm_scan.schedules.machine.device import device_of

Arrays = dict[str, np.ndarray]
#: From arguments before to arguments after.
Run = Callable[[Arrays], Arrays]


def runnable(func: tirx.PrimFunc, name: str, target: Target) -> Run:
    """Return a function by TVM's runtime, or by a driver where that has no device of the target.

    Parameters
    ----------
    func : tirx.PrimFunc
        Scheduled.
    name : str
        Its symbol.
    target : tvm.target.Target
        Where it runs.

    Raises
    ------
    ScanError
        If nothing here runs its kernels: it says which package brings what does.
    """
    row = device_of(target)
    device = tvm.device(row.runtime, 0)
    if not row.is_gpu or device.exist:
        return with_tensors(build(func, target)[name], device)
    run = launched(func, target)

    def on_driver(arrays: Arrays) -> Arrays:
        return dict(zip(arrays, run(list(arrays.values())), strict=True))

    return on_driver


def with_tensors(compiled: Any, device: Any) -> Run:
    """Return a compiled function as one of NumPy's arrays.

    Parameters
    ----------
    compiled : callable
        Of TVM's tensors.
    device : tvm.runtime.Device
        Where they lie.
    """

    def on_device(arrays: Arrays) -> Arrays:
        tensors = {name: tvm.runtime.tensor(array, device) for name, array in arrays.items()}
        compiled(*tensors.values())
        device.sync()
        return {name: tensor.numpy() for name, tensor in tensors.items()}

    return on_device
