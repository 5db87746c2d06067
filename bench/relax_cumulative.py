"""relax.cumsum and relax.cumprod on a CPU: our scans against TVM's own lowering.

Both modules are compiled by TVM's default CPU pipeline, one with the scan passes in front of it;
the two and a plain copy of the same bytes take turns in one process.

    python -m bench.relax_cumulative [--json bench/results/relax_cumulative.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import tvm
from tvm import relax

from bench.answers import close
from bench.timing import interleaved, machine
from tvm_scan.arguments import host_target
from tvm_scan.relax import get_pipeline

__all__ = ["main"]

CASES = [
    ("cumsum", shape, axis, dtype, exclusive)
    for shape, axis in [
        ((1, 1 << 12), 1),
        ((1, 1 << 20), 1),
        ((64, 1 << 14), 1),
        ((4096, 256), 1),
        ((4096, 256), 0),
        ((1 << 16, 64), 0),
        ((8, 1024, 128), 1),
    ]
    for dtype in ("float32", "int32")
    for exclusive in (False, True)
] + [
    ("cumprod", (64, 1 << 14), 1, "float32", False),
    ("cumprod", (4096, 256), 0, "float32", False),
    ("cumsum", (64, 1 << 14), 1, "float16", False),
    ("cumsum", (64, 1 << 14), 1, "float64", False),
    ("cumsum", (64, 1 << 14), 1, "int64", False),
    ("cumsum", (1, 1 << 12), 1, "int64", False),
    ("cumsum", (1024, 16), 1, "int64", False),
    ("cumprod", (1024, 16), 1, "int64", False),
    ("cumprod", (64, 1 << 14), 1, "int64", False),
    ("cumsum", (4096, 256), 0, "int64", False),
]


@dataclass(frozen=True)
class Row:
    """Medians of one case in microseconds."""

    case: str
    tvm_us: float
    ours_us: float
    copy_us: float
    ratio: float
    spread: float


def build(name, shape, axis, dtype, exclusive, target, ours):
    """The operator as a Relax function, ready to be called."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    operator = {"cumsum": relax.op.cumsum, "cumprod": relax.op.cumprod}[name]
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(operator(x, axis, exclusive=exclusive))
        builder.emit_func_output(out)
    default = import_module("tvm.relax.backend.cpu_generic.pipeline").get_default_pipeline(target)
    pipeline = get_pipeline(target) if ours else default
    built = tvm.compile(builder.get(), target=target, relax_pipeline=pipeline)
    return relax.VirtualMachine(built, tvm.cpu())["main"]


def expected(name, array, axis, exclusive):
    """In float64, or in the integer itself."""
    wide = array.dtype if array.dtype.kind == "i" else "float64"
    run, first = (np.cumsum, 0) if name == "cumsum" else (np.cumprod, 1)
    with np.errstate(over="ignore"):
        out = run(array, axis, dtype=wide)
    if not exclusive:
        return out
    out = np.moveaxis(np.roll(out, 1, axis), axis, 0)
    out[0] = first
    return np.moveaxis(out, 0, axis)


def measure(name, shape, axis, dtype, exclusive, target):
    """Run one case, whose results are compared with float64 first."""
    values = np.random.default_rng(0).uniform(0.999, 1.001, shape)
    array = (values * 3 if "int" in dtype else values).astype(dtype)
    x = tvm.runtime.tensor(array)
    theirs = build(name, shape, axis, dtype, exclusive, target, False)
    ours = build(name, shape, axis, dtype, exclusive, target, True)
    want = expected(name, array, axis, exclusive)
    # TVM's own float16 rounds its carry at every step; elsewhere both must be right.
    for label, call in {"ours": ours, **({} if dtype == "float16" else {"TVM": theirs})}.items():
        right = close(call(x).numpy(), want, 0 if "int" in dtype else 2e-3)
        assert right, f"{name}{shape} axis={axis} {dtype}, {label}: a wrong result"
    source, sink = array.copy(), array.copy()
    times = interleaved(
        {
            "tvm": lambda: theirs(x),
            "ours": lambda: ours(x),
            "copy": lambda: np.copyto(sink, source),
        }
    )
    label = f"{name}{shape} axis={axis} {dtype}{' exclusive' if exclusive else ''}"
    return Row(
        label,
        times["tvm"].median * 1e6,
        times["ours"].median * 1e6,
        times["copy"].median * 1e6,
        times["tvm"].median / times["ours"].median,
        times["ours"].spread,
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--quick", action="store_true", help="two small cases only")
    args = parser.parse_args(argv)
    target = host_target()
    print(f"{'case':<52} {'TVM':>11} {'ours':>11} {'copy':>10} {'ratio':>6}")
    rows = []
    for case in CASES[-3:-1] if args.quick else CASES:
        row = measure(*case, target)
        rows.append(row)
        print(
            f"{row.case:<52} {row.tvm_us:>9.1f}us {row.ours_us:>9.1f}us {row.copy_us:>8.1f}us "
            f"{row.ratio:>6.2f}",
            flush=True,
        )
    ratios = sorted(row.ratio for row in rows)
    print(f"\nratio: smallest {ratios[0]:.2f}, median {ratios[len(ratios) // 2]:.2f}, ", end="")
    print(f"largest {ratios[-1]:.2f}")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        payload = {"machine": machine(target), "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(payload, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
