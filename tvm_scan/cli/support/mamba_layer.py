"""One Mamba layer over bytes in NumPy float64: the oracle of the demo.

The architecture and its initialisation are those of Gu and Dao 2023 (arXiv 2312.00752): input
projection, causal depthwise convolution, selective scan, gate, output projection.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tvm_scan.library.selective_scan import selective_scan_reference, silu_reference

CONV_WIDTH = 4
EXPAND = 2
STEP_MIN, STEP_MAX = 1e-3, 1e-1


@dataclass(frozen=True)
class MambaLayer:
    """A byte embedding and one Mamba layer with seeded weights.

    Parameters
    ----------
    d_model : int
        Width of the embedding and of the output.
    d_state : int
        Numbers of state per channel.
    seed : int
        Of the weights.
    """

    d_model: int
    d_state: int = 16
    seed: int = 0

    @property
    def d_inner(self) -> int:
        """Number of channels of the scan."""
        return EXPAND * self.d_model

    @property
    def dt_rank(self) -> int:
        """Rank of the projection that makes the step sizes."""
        return math.ceil(self.d_model / 16)

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """The weights by name, float64. Projections have shape (out, in)."""
        rng = np.random.default_rng(self.seed)

        def linear(rows: int, columns: int) -> np.ndarray:
            return rng.uniform(-1, 1, (rows, columns)) / math.sqrt(columns)

        d, n, rank = self.d_inner, self.d_state, self.dt_rank
        conv_bound = 1 / math.sqrt(CONV_WIDTH)
        steps = np.exp(rng.uniform(math.log(STEP_MIN), math.log(STEP_MAX), d))
        return {
            # Variance 1: what Mamba's small embedding is after the norm in front of its layer.
            "embedding": rng.standard_normal((256, self.d_model)),
            "in_proj": linear(2 * d, self.d_model),
            "conv": rng.uniform(-conv_bound, conv_bound, (d, CONV_WIDTH)),
            "conv_bias": rng.uniform(-conv_bound, conv_bound, d),
            "x_proj": linear(rank + 2 * n, d),
            "dt_proj": linear(d, rank),
            # The inverse of softplus, without cancellation for small steps.
            "dt_bias": steps + np.log(-np.expm1(-steps)),
            "A_log": np.log(np.tile(np.arange(1.0, n + 1), (d, 1))),
            "D": np.ones(d),
            "out_proj": linear(self.d_model, d),
        }

    def scan_inputs(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Compute everything in front of the selective scan.

        Parameters
        ----------
        tokens : numpy.ndarray
            uint8, shape (batch, length).

        Returns
        -------
        dict of str to numpy.ndarray
            ``u, delta, A, B, C, D, z, delta_bias``: the parameters of `selective_scan`, in order,
            with time last; float64.
        """
        weights = self.weights
        embedded = weights["embedding"][tokens]
        x, z = np.split(embedded @ weights["in_proj"].T, 2, axis=-1)
        u = silu_reference(_causal_convolution(x, weights["conv"], weights["conv_bias"]))
        low_rank, B, C = np.split(
            u @ weights["x_proj"].T, [self.dt_rank, self.dt_rank + self.d_state], axis=-1
        )
        delta = low_rank @ weights["dt_proj"].T

        arrays = {
            "u": u.swapaxes(1, 2),
            "delta": delta.swapaxes(1, 2),
            "A": -np.exp(weights["A_log"]),
            "B": B.swapaxes(1, 2),
            "C": C.swapaxes(1, 2),
            "D": weights["D"],
            "z": z.swapaxes(1, 2),
            "delta_bias": weights["dt_bias"],
        }
        return {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    def finish(self, y: np.ndarray) -> np.ndarray:
        """Apply the output projection to the scan's output, (batch, channels, length).

        Returns
        -------
        numpy.ndarray
            float64, shape (batch, length, d_model).
        """
        result: np.ndarray = y.swapaxes(1, 2).astype("float64") @ self.weights["out_proj"].T
        return result

    def reference(self, tokens: np.ndarray) -> np.ndarray:
        """Compute the whole layer in float64, the scan step after step.

        Returns
        -------
        numpy.ndarray
            float64, shape (batch, length, d_model).
        """
        y, _ = selective_scan_reference(*self.scan_inputs(tokens).values())
        return self.finish(y)


def _causal_convolution(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Convolve each channel with its own kernel, the last tap on the present step.

    `x` has shape (batch, length, channels), `kernel` (channels, width).
    """
    width = kernel.shape[1]
    length = x.shape[1]
    padded = np.pad(x, ((0, 0), (width - 1, 0), (0, 0)))
    result: np.ndarray = bias + sum(padded[:, k : k + length] * kernel[:, k] for k in range(width))
    return result
