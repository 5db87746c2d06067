"""What the scan passes cost a model that has no recurrence: 100 functions, compiled in turns.

python -m bench.relax_overhead [--rounds 5] [--json bench/results/relax_overhead.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from importlib import import_module
from pathlib import Path
from statistics import median

import tvm
from tvm import relax

from bench.timing import machine
from tvm_scan.arguments import host_target
from tvm_scan.relax import get_pipeline, scan_passes

__all__ = ["main", "model"]


def model(functions: int = 100) -> tvm.IRModule:
    """A chain of four operators a link; each link has shapes, and so functions, of its own."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([8, 64], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value, width = x, 64
            for i in range(functions // 4):
                after = 64 + i % 50 + 1
                weight = relax.const(0.01, "float32")
                ones = builder.emit(relax.op.full((width, after), weight, "float32"))
                value = builder.emit(relax.op.matmul(value, ones))
                value = builder.emit(relax.op.nn.softmax(builder.emit(relax.op.nn.gelu(value))))
                width = after
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return builder.get()


def main(argv: list[str] | None = None) -> int:
    """Print the medians and their difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to write the result")
    args = parser.parse_args(argv)
    target = host_target()
    plain = import_module("tvm.relax.backend.cpu_generic.pipeline").get_default_pipeline(target)
    mod = model()
    seconds: dict[str, list[float]] = {"plain": [], "ours": [], "passes": []}
    for _ in range(args.rounds):
        for name, pipeline in (("plain", plain), ("ours", get_pipeline(target))):
            start = time.perf_counter()
            tvm.compile(mod, target=target, relax_pipeline=pipeline)
            seconds[name].append(time.perf_counter() - start)
        # On the functions as they are called after legalisation, where there is most to look at.
        legal = relax.transform.LegalizeOps()(mod)
        start = time.perf_counter()
        scan_passes(target)(legal)
        seconds["passes"].append(time.perf_counter() - start)
    count = sum(isinstance(f, tvm.tirx.PrimFunc) for _, f in legal.functions_items())
    result = {name: median(values) for name, values in seconds.items()}
    result["functions"] = count
    result["overhead"] = result["passes"] / result["plain"]
    print(
        f"{count} functions: TVM {result['plain']:.2f} s, with tvm_scan {result['ours']:.2f} s; "
        f"the passes on all of them {result['passes'] * 1e3:.0f} ms, {result['overhead']:.1%}"
    )
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(target), **result}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
