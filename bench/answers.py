"""Results beside float64, before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from tvm_scan import Recurrence
from tvm_scan.schedules.verification.bounds import errors, promise

__all__ = ["close", "require_law", "run_loop"]


def run_loop(func: Any, arrays: Sequence[np.ndarray], target: Target) -> list[np.ndarray]:
    """What a sequential loop makes of its arguments, which stay as they are."""
    name = str(func.attrs["global_symbol"])
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    tvm.compile(func, target=target)[name](*tensors)
    return [tensor.numpy() for tensor in tensors]


def require_law(
    label: str, found: Recurrence, got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray]
) -> None:
    """Raise where an output is further from float64 than the recurrence's law allows.

    Parameters
    ----------
    label : str
        Of the method, for the message.
    found : Recurrence
        Of the function.
    got, want : mapping of str to ndarray
        Outputs of the method, and of the loop in float64.
    """
    outputs = {str(param.name): param for param in found.func.params}
    for name, array in got.items():
        promised = promise(found, outputs[name])
        exact = want[name].astype("float64")
        if promised.bound == 0:  # a maximum of values that float32 rounded once
            exact = exact.astype(array.dtype).astype("float64")
        off = errors(array.astype("float64"), exact, np.zeros_like(exact), promised)
        if off.size and off.max() > promised.bound:
            raise AssertionError(
                f"{label}: expected {name} within {promised.bound:.2g} of the size of its terms, "
                f"got {off.max():.2g}"
            )


def close(got: Any, want: Any, relative: float) -> bool:
    """Whether two results agree within a fraction of the largest value.

    Parameters
    ----------
    got, want : array_like
        Of a method, and in float64.
    relative : float
        The fraction.
    """
    left, right = np.asarray(got, "float64"), np.asarray(want, "float64")
    if left.shape != right.shape:
        return False
    return bool((np.abs(left - right) <= relative * np.abs(right).max(initial=0.0)).all())
