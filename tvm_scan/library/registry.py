"""The recurrences by name, each with what a test, a benchmark or a command line needs to run it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from . import example_inputs as examples
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
from .selective_scan import selective_scan, selective_scan_reference

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Entry:
    """One recurrence of the library.

    `example_inputs` and `expected` take the arguments of `factory`, so that one set of sizes and
    options describes a whole run::

        entry = LIBRARY["cumsum"]
        func = entry.factory(4, 100)
        inputs = entry.example_inputs(rng, 4, 100)
        want = entry.expected(inputs)

    Attributes
    ----------
    name : str
        The key in `LIBRARY`.
    equation : str
        The step in one line.
    factory : callable
        ``factory(*sizes, dtype, **options) -> tirx.PrimFunc``.
    reference : callable
        The NumPy twin, with its own signature.
    size_names : tuple of str
        The names of `sizes`, in order.
    output_names : tuple of str
        Parameters that the function writes; ``[name for name in output_names if present]``.
    example_inputs : callable
        ``example_inputs(rng, *sizes, dtype, **options)``: an array for each parameter that is
        read, in the order of the parameters. The sizes must be numbers.
    expected : callable
        ``expected(inputs, **options)``: an array from the twin for each parameter that is
        written, in the order of the parameters.
    """

    name: str
    equation: str
    factory: Callable[..., tirx.PrimFunc]
    reference: Callable[..., Any]
    size_names: tuple[str, ...]
    output_names: tuple[str, ...]
    example_inputs: Callable[..., Arrays]
    expected: Callable[..., Arrays]

    def parameters(self, func: tirx.PrimFunc) -> tuple[list[str], list[str]]:
        """Return the names of the parameters that `func` reads, and of those that it writes."""
        names = [param.name for param in func.params]
        read = [name for name in names if name not in self.output_names]
        return read, [name for name in names if name in self.output_names]


def _cumulative_entry(
    name: str, equation: str, factory: Callable[..., tirx.PrimFunc], reference: Callable[..., Any]
) -> Entry:
    def expected(inputs: Arrays, **options: object) -> Arrays:
        return {"Y": reference(inputs["X"], **options)}

    return Entry(
        name,
        equation,
        factory,
        reference,
        ("rows", "length"),
        ("Y",),
        getattr(examples, f"{name}_inputs"),
        expected,
    )


def _ema_expected(
    inputs: Arrays, *, alpha: float | str = 0.1, initial: str = "zero", layout: str = "dl"
) -> Arrays:
    weight = inputs["ALPHA"] if isinstance(alpha, str) else alpha
    h = ema_reference(inputs["X"], weight, inputs.get("H0"), initial=initial, layout=layout)
    return {"H": h}


def _linear_expected(
    inputs: Arrays,
    *,
    batch: int | None = 1,
    layout: str = "dl",
    gate: float | str = "time",
    initial_state: bool = False,
    final_state: bool = False,
    reverse: bool = False,
    exclusive: bool = False,
) -> Arrays:
    h, last = linear_recurrence_reference(
        inputs["A"] if isinstance(gate, str) else gate,
        inputs["X"],
        inputs.get("H0"),
        layout=layout,
        reverse=reverse,
        exclusive=exclusive,
    )
    return {"H": h, "HN": last} if final_state else {"H": h}


def _selective_scan_expected(
    inputs: Arrays,
    *,
    layout: str = "bdl",
    softplus: bool = True,
    final_state: bool = False,
    **_options: object,
) -> Arrays:
    # The other options show in which arrays there are.
    out, last = selective_scan_reference(**inputs, layout=layout, softplus=softplus)
    return {"out": out, "h_final": last} if final_state else {"out": out}


LIBRARY: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        _cumulative_entry("cumsum", "y[t] = y[t-1] + x[t]", cumsum, cumsum_reference),
        _cumulative_entry("cumprod", "y[t] = y[t-1] * x[t]", cumprod, cumprod_reference),
        _cumulative_entry("cummax", "y[t] = max(y[t-1], x[t])", cummax, cummax_reference),
        _cumulative_entry("cummin", "y[t] = min(y[t-1], x[t])", cummin, cummin_reference),
        Entry(
            "ema",
            "h[t] = (1 - alpha) * h[t-1] + alpha * x[t]",
            ema,
            ema_reference,
            ("lanes", "length"),
            ("H",),
            examples.ema_inputs,
            _ema_expected,
        ),
        Entry(
            "linear_recurrence",
            "h[t] = a[t] * h[t-1] + x[t]",
            linear_recurrence,
            linear_recurrence_reference,
            ("lanes", "length"),
            ("H", "HN"),
            examples.linear_recurrence_inputs,
            _linear_expected,
        ),
        Entry(
            "selective_scan",
            "h[t] = exp(dt[t] A) h[t-1] + dt[t] B[t] u[t];  y[t] = C[t] . h[t] + D u[t]",
            selective_scan,
            selective_scan_reference,
            ("batch", "channels", "length", "states"),
            ("out", "h_final"),
            examples.selective_scan_inputs,
            _selective_scan_expected,
        ),
    )
}
"""Name -> `Entry`."""
