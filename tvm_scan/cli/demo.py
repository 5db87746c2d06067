"""``tvm-scan demo``: a Mamba layer over the bytes of a text, compiled, checked and timed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from tvm_scan.cli.support.failure import WRONG_RESULT, CommandError
from tvm_scan.cli.support.options import Json, Target
from tvm_scan.cli.support.paths import check_file
from tvm_scan.cli.support.terminal import print_json, print_table

#: A float32 scan rounds a few times per step; a layer's gates are below one, so that rounding
#: errors die away instead of adding up, and what remains is a small multiple of 2^-24 of the
#: largest intermediate value. The bound below is about 500 of those.
_RELATIVE_BOUND = 3e-5


def command(
    text: Annotated[
        Path | None, typer.Option("--text", help="text file; the licence if not given")
    ] = None,
    d_model: Annotated[
        int, typer.Option("--d-model", min=1, max=4096, help="width of the layer")
    ] = 64,
    d_state: Annotated[
        int, typer.Option("--d-state", min=1, max=64, help="states of a channel")
    ] = 16,
    length: Annotated[
        int, typer.Option("--length", min=1, max=1 << 20, help="bytes of the text to use at most")
    ] = 4096,
    target: Target = "cpu",
    as_json: Json = False,
) -> None:
    """Run a Mamba layer over the bytes of a text, check it, and time it.

    Example: tvm-scan demo --length 2048
    """
    data = _bytes(text)[:length]
    if not data:
        raise CommandError("expected a text with at least one byte, got an empty file")
    import numpy as np

    from tvm_scan import library, parallelize
    from tvm_scan.cli.support.execute import bind, interleaved_medians, run_beside
    from tvm_scan.cli.support.load import Choice, make_target
    from tvm_scan.cli.support.mamba_layer import MambaLayer

    on = make_target(target)
    tokens = np.frombuffer(data, dtype=np.uint8)[None, :]
    layer = MambaLayer(d_model, d_state)
    exact = layer.scan_inputs(tokens)
    inputs = {key: value.astype("float32") for key, value in exact.items()}
    batch, channels, steps = inputs["u"].shape
    func = library.selective_scan(batch, channels, steps, d_state)
    plan = Choice(on)
    scheduled = parallelize(func, on, plan)
    bound = bind(func, inputs)
    (sequential, loop_out), (scan, scan_out) = run_beside(func, scheduled, on, bound)
    want = layer.reference(tokens)
    got = layer.finish(scan_out["out"].numpy())
    loop = layer.finish(loop_out["out"].numpy())
    scale = float(np.max(np.abs(want)))
    error, loop_error = (float(np.max(np.abs(value - want))) / scale for value in (got, loop))
    calls: dict[str, Any] = {"sequential TIR loop": sequential, "tvm_scan": scan}
    moved = sum(array.size for array in bound.arrays.values()) // 2
    source, sink = np.zeros(moved, "float32"), np.zeros(moved, "float32")
    calls["copy of the same bytes"] = lambda: np.copyto(sink, source)
    times = interleaved_medians(calls, seconds=2.0)
    if find_spec("torch") is not None:
        times["PyTorch loop"] = _torch_seconds(inputs)
    report = {
        "bytes": len(data),
        "channels": channels,
        "states": d_state,
        "plan": str(plan),
        "relative_error": error,
        "relative_error_of_the_loop": loop_error,
        "bound": _RELATIVE_BOUND,
        "seconds": times,
    }
    _show(report, as_json)
    if not error <= _RELATIVE_BOUND:
        raise CommandError(
            f"expected an error of at most {_RELATIVE_BOUND} of the largest output, got {error}",
            WRONG_RESULT,
        )


def _bytes(path: Path | None) -> bytes:
    if path is None:
        from tvm_scan._resources import licence_text

        return licence_text().encode()
    check_file(path, "a text file")
    return path.read_bytes()


def _torch_seconds(inputs: dict[str, Any]) -> float:
    """Median seconds of the recurrence as an eager PyTorch loop over time."""
    import numpy as np
    import torch
    from torch.nn.functional import silu, softplus

    from tvm_scan.cli.support.execute import interleaved_medians

    t = {key: torch.from_numpy(np.ascontiguousarray(value)) for key, value in inputs.items()}

    def run() -> torch.Tensor:
        delta = softplus(t["delta"] + t["delta_bias"][:, None])
        state = torch.zeros(*t["u"].shape[:2], t["A"].shape[1])
        steps = []
        for i in range(t["u"].shape[2]):
            step = delta[:, :, i, None]
            drive = step * t["B"][:, None, :, i] * t["u"][:, :, i, None]
            state = torch.exp(step * t["A"]) * state + drive
            steps.append((state * t["C"][:, None, :, i]).sum(-1))
        y = torch.stack(steps, dim=2) + t["D"][:, None] * t["u"]
        return y * silu(t["z"])

    with torch.no_grad():
        return interleaved_medians({"torch": run}, seconds=0.0, least=3)["torch"]


def _show(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    print(
        f"one Mamba layer over {report['bytes']} bytes: {report['channels']} channels x "
        f"{report['states']} states, plan {report['plan']}"
    )
    verdict = "within" if report["relative_error"] <= report["bound"] else "OUTSIDE"
    print(
        f"error against float64: {report['relative_error']:.1e} of the largest output "
        f"({verdict} the bound {report['bound']:.0e}; the sequential loop: "
        f"{report['relative_error_of_the_loop']:.1e})"
    )
    base = report["seconds"]["sequential TIR loop"]
    rows = [
        (name, f"{seconds * 1e3:.2f}", f"{base / seconds:.2f}x")
        for name, seconds in sorted(report["seconds"].items(), key=lambda item: -item[1])
    ]
    numbers = ("ms", "against the TIR loop")
    title = "the selective scan, median times"
    print_table(("method", *numbers), rows, title=title, right=numbers)
