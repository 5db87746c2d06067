"""Running a library function serially on the CPU, and the error that rounding may cause."""

import numpy as np
import tvm
from tvm import tirx

from tvm_scan.library import LIBRARY

Arrays = dict[str, np.ndarray]


def run_serial(
    executable: tvm.runtime.Executable, func: tirx.PrimFunc, inputs: Arrays, outputs: Arrays
) -> Arrays:
    """Call a compiled function; outputs are filled with 77 first, so an unwritten one shows."""
    dtype = next(iter(inputs.values())).dtype
    buffers = {key: tvm.runtime.tensor(np.ascontiguousarray(a)) for key, a in inputs.items()}
    for key, like in outputs.items():
        buffers[key] = tvm.runtime.tensor(np.full(like.shape, 77, dtype))
    executable(*(buffers[param.name] for param in func.params))
    return {key: buffers[key].numpy() for key in outputs}


def error_bound(name: str, inputs: Arrays, options: dict[str, object], length: int) -> Arrays:
    """Bound the rounding error of the sequential loop in the dtype of the inputs, per output.

    A step of each recurrence is a few rounded operations, so after t steps the error is at most
    ``((1 + eps)^(k t) - 1)`` times the same recurrence on absolute values, where no cancellation
    hides the size of the terms (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
    k is the number of roundings of a step; the bound is taken to first order with k rounded up.
    """
    dtype = next(iter(inputs.values())).dtype
    eps = np.finfo(dtype).eps
    magnitudes = {key: np.abs(array) for key, array in inputs.items()}
    per_step, once = 2.0, 2.0
    if name == "ema":
        per_step = 4.0  # 1 - alpha, two products, one sum
        if options.get("alpha") == "lane":
            assert (inputs["ALPHA"] <= 1).all()
    if name == "selective_scan":
        magnitudes["A"] = inputs["A"]  # gates must stay below 1, and exp(.) is positive anyway
        for key in ("delta", "delta_bias"):  # only inside softplus or as given: keep the sign
            if key in inputs:
                magnitudes[key] = inputs[key]
        # exp(p) turns an absolute error of p = dt * A into a relative one; p is at most
        # max(dt) * max|A| and carries the 6 roundings of softplus, the bias and the product.
        dt = inputs["delta"].max(initial=0) + inputs.get("delta_bias", np.zeros(1)).max(initial=0)
        dt = np.logaddexp(0, dt) if options.get("softplus", True) else dt
        per_step = 12.0 + 6.0 * dt * np.abs(inputs["A"]).max(initial=0)
        # The contraction over the states, the skip, and exp(-z).
        once = 8.0 + inputs["A"].shape[1] + np.abs(inputs.get("z", np.zeros(1))).max(initial=0)
        if "z" in magnitudes:
            magnitudes["z"] = inputs["z"]
    if isinstance(options.get("gate"), int | float):
        options = {**options, "gate": abs(options["gate"])}
    sizes = LIBRARY[name].expected(magnitudes, **options)
    tiny = np.finfo(dtype).tiny
    return {k: (per_step * length + once) * eps * np.abs(v) + tiny for k, v in sizes.items()}
