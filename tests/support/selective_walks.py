"""Walks of a selective scan over 64 channels: their plans, and inputs with chosen exponents."""

from __future__ import annotations

import numpy as np

from tvm_scan import ScanPlan
from tvm_scan.library import LIBRARY

__all__ = ["CHANNELS", "PLANS", "STATES", "inputs"]

CHANNELS, STATES = 64, 16
_TWO = ScanPlan.parse(
    "cuda/lanes(threads_per_block=64, items_per_thread=4, vector_loads=True, threads_per_lane=2, "
    "block_load=transposed, stages=2)"
)
PLANS = {
    "two threads": _TWO,
    "one thread": _TWO.with_(threads_per_lane=1, threads_per_block=32),
    "without tiles": _TWO.with_(block_load="direct", stages=1),
}


def inputs(exponents: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """Arrays of a scan over ``length`` steps, with ``exponents`` of all channels or of each."""
    rng = np.random.default_rng(0)
    made = LIBRARY["selective_scan"].example_inputs(
        rng, 1, CHANNELS, length, STATES, dtype="float32"
    )
    made["A"] = np.broadcast_to(exponents, (CHANNELS, STATES)).astype("float32").copy()
    return made
