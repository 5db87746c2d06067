"""Scans with an activation in front and a gate behind: fused into one kernel, and as three.

python -m bench.relax_fuse [--json bench/results/relax_fuse.json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from bench.answers import close
from bench.timing import interleaved, machine
from tvm_scan import library
from tvm_scan.arguments import host_target
from tvm_scan.relax import LegalizeScans, ParallelizeScans, get_pipeline

__all__ = ["main"]

CASES = [
    ("lanes", (4, 300)),
    ("time", (1, 1 << 12)),
    ("time", (16, 1 << 12)),
    ("time", (1, 1 << 20)),
    ("time", (64, 1 << 16)),
    ("lanes", (1024, 512)),
    ("lanes", (2048, 2048)),
]


def model(order: str, rows: int, length: int) -> tvm.IRModule:
    """``silu(scan(sigmoid(a), b * x)) * z`` with time last, or first."""
    builder = relax.BlockBuilder()
    shape = [rows, length] if order == "time" else [length, rows]
    kind = relax.TensorType(shape, "float32")
    a, b, x, z = (relax.Var(n, kind) for n in "abxz")
    layout = "dl" if order == "time" else "ld"
    scan = library.linear_recurrence(rows, length, layout=layout)
    name = builder.add_func(scan.without_attr("global_symbol"), "recurrence")
    with builder.function("main", [a, b, x, z]):
        with builder.dataflow():
            gate, inputs = builder.emit(relax.op.sigmoid(a)), builder.emit(relax.op.multiply(b, x))
            h = builder.emit(relax.call_tir(name, [gate, inputs], kind))
            y = builder.emit_output(relax.op.multiply(builder.emit(relax.op.nn.silu(h)), z))
        builder.emit_func_output(y)
    return builder.get()


def built(mod: tvm.IRModule, target: Target, fused: bool) -> object:
    """The function, ready to be called."""
    if not fused:
        # Scheduled scans are left alone by the pass of the pipeline.
        mod = ParallelizeScans(target)(LegalizeScans()(mod))
    executable = tvm.compile(mod, target=target, relax_pipeline=get_pipeline(target))
    return relax.VirtualMachine(executable, tvm.cpu())["main"]


def expected(order: str, a: np.ndarray, b: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The model in float64, one step after another."""
    gates, added = 1 / (1 + np.exp(-a)), b * x
    if order == "time":
        gates, added = gates.T, added.T
    state, states = np.zeros(gates.shape[1]), np.empty_like(gates)
    for t, (gate, value) in enumerate(zip(gates, added, strict=True)):
        state = states[t] = gate * state + value
    h = states.T if order == "time" else states
    return h / (1 + np.exp(-h)) * z


def measure(order: str, shape: tuple[int, int], target: Target) -> dict[str, object]:
    """Compare both results of one case with float64, then their times in turns."""
    rng = np.random.default_rng(0)
    dims = shape if order == "time" else shape[::-1]
    arrays = [tvm.runtime.tensor(rng.standard_normal(dims).astype("float32")) for _ in "abxz"]
    mod = model(order, *shape)
    apart, fused = built(mod, target, False), built(mod, target, True)
    want = expected(order, *(a.numpy().astype("float64") for a in arrays))
    for label, call in {"apart": apart, "fused": fused}.items():
        assert close(call(*arrays).numpy(), want, 1e-4), f"{order} {shape}, {label}: wrong"
    times = interleaved({"apart": lambda: apart(*arrays), "fused": lambda: fused(*arrays)})
    one, two = times["apart"].median * 1e6, times["fused"].median * 1e6
    case = f"{order} {shape[0]} x {shape[1]}"
    return {"case": case, "apart_us": one, "fused_us": two, "ratio": one / two}


def main(argv: list[str] | None = None) -> int:
    """Print the table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--quick", action="store_true", help="the first two cases only")
    args = parser.parse_args(argv)
    target = host_target()
    print(f"{'case':<24} {'apart':>11} {'fused':>11} {'ratio':>6}")
    rows = []
    for order, shape in CASES[:2] if args.quick else CASES:
        rows.append(measure(order, shape, target))
        print("{case:<24} {apart_us:>9.1f}us {fused_us:>9.1f}us {ratio:>6.2f}".format(**rows[-1]))
    if args.json:
        result = {"machine": machine(target), "rows": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
