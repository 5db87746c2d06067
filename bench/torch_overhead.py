"""What a call costs beside the kernel: tiny tensors through every way in, in one run.

python -m bench.torch_overhead [--calls 2000] [--json bench/results/torch_overhead.json] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import tvm_scan.torch as ts
from bench import torch_page
from bench.answers import close
from bench.timing import machine
from bench.torch_peers import linear_loop
from tvm_scan import library
from tvm_scan.arguments import host_target

__all__ = ["main", "ways"]


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Gates and values of 2 lanes and 8 steps."""
    generator = torch.Generator().manual_seed(0)
    a, x = torch.rand(2, 2, 8, generator=generator).unbind(0)
    return a, x


def ways() -> dict[str, Callable[[], object]]:
    """Every way to run a recurrence of 2 lanes and 8 steps, and torch's own for comparison."""
    a, x = inputs()
    h = torch.empty_like(x)
    leaf = x.clone().requires_grad_()
    compiled = ts.compile_primfunc(library.linear_recurrence(None, None))
    cumulative = torch.ops.tvm_scan.cumulative.default
    affine = torch.ops.tvm_scan.affine_scan.default
    gates, framed = a[..., None], x[..., None]  # (outer, length, inner)

    def operand(p, q):
        return q[0] * p[0], q[0] * p[1] + q[1]

    return {
        "torch.empty": lambda: torch.empty((2, 8)),
        "torch.cumsum": lambda: torch.cumsum(x, 1),
        "compile_primfunc(...), output given": lambda: (compiled(a, x, h), h),
        "compile_primfunc(...), new output": lambda: compiled(a, x),
        "torch.ops.tvm_scan.cumulative": lambda: cumulative(framed, "add", False, False),
        "torch.ops.tvm_scan.affine_scan": lambda: affine(
            gates, framed, None, None, "inclusive", False
        ),
        "cumsum": lambda: ts.cumsum(x, 1),
        "linear_recurrence": lambda: ts.linear_recurrence(a, x),
        "linear_recurrence, recorded": lambda: ts.linear_recurrence(a, leaf),
        "associative_scan": lambda: ts.associative_scan(operand, (a, x), 1),
    }


def require_right(name: str, result: object) -> None:
    """Raise where a way does not give the cumulative sum, or the recurrence, of float64."""
    if name == "torch.empty":
        return
    a, x = inputs()
    want = torch.cumsum(x.double(), 1) if "cum" in name else linear_loop(a.double(), x.double())
    found = (result if isinstance(result, tuple) else (result,))[-1]
    if not close(found.detach().reshape(want.shape).numpy(), want.numpy(), 1e-6):
        raise AssertionError(f"{name}: expected the result of float64")


def main(argv: list[str] | None = None) -> int:
    """Print microseconds a call: the best and the median of the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100, help="calls in a round")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--write", action="store_true", help="write docs/torch/measurements.md")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    measured: dict[str, list[float]] = {}
    functions = ways()
    for name, function in functions.items():
        require_right(name, function())
    for _ in range(args.rounds):  # in turns, so that a slow moment meets all of them
        for name, function in functions.items():
            seconds = timeit.timeit(function, number=args.calls)
            measured.setdefault(name, []).append(seconds / args.calls * 1e6)
    for name, found in measured.items():
        print(f"{name:30} best {min(found):7.2f} us, median {median(found):7.2f} us")
    about = machine(host_target()) | {"torch": torch.__version__}
    us = {n: {"best": min(f), "median": median(f)} for n, f in measured.items()}
    result = {"machine": about, "us": us}
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.write:
        torch_page.write(torch_page.DOCS / "measurements.md", "calls", torch_page.calls(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
