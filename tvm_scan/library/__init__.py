"""A library of recurrences: plain sequential TensorIR loops, each with a NumPy twin.

Each factory returns a ``tirx.PrimFunc`` that takes time one step after another; nothing here is
parallel. `LIBRARY` lists them by name. The twin of each is its oracle: a sequential loop in
float64, or in the integers' own dtype with their wrap-around.
"""

from .cumulative import (
    cummax,
    cummax_reference,
    cummin,
    cummin_reference,
    cumprod,
    cumprod_reference,
    cumsum,
    cumsum_reference,
)
from .ema import ema, ema_reference
from .linear import linear_recurrence, linear_recurrence_reference
from .registry import LIBRARY, Entry
from .selective_scan import selective_scan, selective_scan_reference

__all__ = [
    "LIBRARY",
    "Entry",
    "cummax",
    "cummax_reference",
    "cummin",
    "cummin_reference",
    "cumprod",
    "cumprod_reference",
    "cumsum",
    "cumsum_reference",
    "ema",
    "ema_reference",
    "linear_recurrence",
    "linear_recurrence_reference",
    "selective_scan",
    "selective_scan_reference",
]
