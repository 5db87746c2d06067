"""The gated delta rule on a CPU beside what else runs it: forward, and forward and backward.

python -m bench.delta [--quick] [--longest 8192] [--json bench/results/delta.json]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import tvm_scan.torch as ts
from bench import delta_vllm
from bench.answers import close
from bench.delta_loop import loop_call
from bench.delta_peers import c_calls, onnxruntime_call, peak, transformers_rules
from bench.memory import peak_bytes
from bench.timing import GAP, Times, interleaved, machine
from tvm_scan.arguments import host_target
from tvm_scan.torch.kernels.cache import kernel_at
from tvm_scan.torch.kernels.events import Run, events

__all__ = ["CASES", "Case", "main"]


class Case(NamedTuple):
    """Value heads, the heads of queries and keys that they share, steps, cells of both."""

    values: int
    heads: int
    length: int
    size: int

    def __str__(self) -> str:
        return f"{self.values} ({self.heads}) x {self.length} x {self.size}"


LENGTHS = (1, 64, 512, 2048, 8192)
CASES = [Case(32, 16, n, 128) for n in LENGTHS] + [Case(8, 8, n, 64) for n in (1, 64, 2048)]
#: Few heads: what a second core gives.
FEW = Case(2, 2, 8192, 128)
#: Steps beyond which a path step after step takes seconds, and one with a gradient all memory.
MOST_STEPS, MOST_WITH_GRADIENT = 512, 2048
#: How far a result may be from float64, over the largest entry.
TOLERANCE = 2e-5


def inputs(case: Case) -> dict[str, Tensor]:
    """Unit queries and keys, gates below 1, rates from 0 to 1."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    q, k = (normal(1, case.length, case.heads, case.size) for _ in "qk")
    return {
        "q": q / q.norm(dim=-1, keepdim=True),
        "k": k / k.norm(dim=-1, keepdim=True),
        "v": normal(1, case.length, case.values, case.size),
        "g": -torch.exp(normal(1, case.length, case.values) - 2),
        "beta": torch.rand(1, case.length, case.values, generator=generator),
        "state": normal(1, case.values, case.size, case.size),
    }


def in_float64(tensors: Mapping[str, Tensor], head: int) -> tuple[Tensor, Tensor]:
    """Outputs and last state of one value head, one step after another."""
    heads, values = tensors["q"].shape[2], tensors["v"].shape[2]
    shared = head // (values // heads)
    q, k = (tensors[n][0, :, shared].double() for n in "qk")
    v, g, beta = (tensors[n][0, :, head].double() for n in ("v", "g", "beta"))
    state, out = tensors["state"][0, head].double(), torch.empty_like(v)
    for t in range(len(q)):
        state = g[t].exp() * state
        state = state + torch.outer(k[t], beta[t] * (v[t] - k[t] @ state))
        out[t] = q.shape[1] ** -0.5 * q[t] @ state
    return out, state


def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Any:
    """Run it here."""
    return ts.gated_delta_rule(q, k, v, g, beta, initial_state=state, output_final_state=True)


def forward_calls(case: Case, tensors: dict[str, Tensor]) -> dict[str, Callable[[], Any]]:
    """Every way to run a case, by name."""
    calls: dict[str, Callable[[], Any]] = {
        "tvm_scan": lambda: ours(**tensors),
        "tvm_scan, from the loop": loop_call(tensors),
    }
    operator = onnxruntime_call(tensors)
    if operator is not None:
        calls["onnxruntime"] = operator
    kernel = delta_vllm.vllm_call(tensors)
    if kernel is not None:
        calls[delta_vllm.WAY] = kernel
    for name, rule in transformers_rules().items():
        if name != "stepwise" or case.length <= MOST_STEPS:
            calls[name] = lambda rule=rule: rule(**tensors)
    return calls | c_calls(tensors)


def kernel_call(function: Callable[..., Any], *given: Tensor, **options: Any) -> Callable[[], Any]:
    """Make a call of the kernel of a function's call, as functions in C are called here.

    That is, on tensors that are checked and allocated once.
    """
    with events() as told:
        function.__wrapped__(*given, **options)  # past what remembers kernels
    (run,) = (event for event in told if isinstance(event, Run))
    kernel = kernel_at(run.key).call
    return lambda: kernel(*run.operands)


def require_right(case: Case, calls: Mapping[str, Callable[[], Any]]) -> None:
    """Compare two heads of every result with float64."""
    tensors = inputs(case)
    chosen = sorted({0, case.values - 1})
    wanted = {head: in_float64(tensors, head) for head in chosen}
    for name, call in calls.items():
        out, last = call()
        tolerance = delta_vllm.TOLERANCE if name == delta_vllm.WAY else TOLERANCE
        for head, (want, state) in wanted.items():
            for part, exact in ((out[0, :, head], want), (last[0, head], state)):
                found = part.double().numpy()
                assert close(found, exact.numpy(), tolerance), f"{case}, {name}: wrong"


def backward_calls(tensors: Mapping[str, Tensor]) -> dict[str, Callable[[], list[Tensor]]]:
    """Forward and backward: ours, and autograd through the chunks of transformers."""
    leaves = {n: t.clone().requires_grad_() for n, t in tensors.items()}
    weights = torch.linspace(-1, 1, tensors["v"].numel()).view(tensors["v"].shape)
    above = [weights, torch.ones_like(tensors["state"])]

    def call(rule: Callable[..., Any]) -> Callable[[], list[Tensor]]:
        def run() -> list[Tensor]:
            # What comes from above is given: it costs every way the same, and is no part of any.
            return list(torch.autograd.grad(rule(**leaves), list(leaves.values()), above))

        return run

    rules = {"tvm_scan": ours, **transformers_rules()}
    return {name: call(rule) for name, rule in rules.items() if name != "stepwise"}


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """Time the ways in turns, whose results are compared with float64 first."""
    with torch.no_grad():
        tensors = inputs(case)
        calls = forward_calls(case, tensors)
        require_right(case, calls)
        given = [tensors[n] for n in ("q", "k", "v", "g", "beta")]
        options: dict[str, Any] = {"initial_state": tensors["state"].clone()}
        if case.length == 1:  # decoding leaves the state where it is
            options["inplace_final_state"] = True
            calls["tvm_scan, in place"] = lambda: ts.gated_delta_rule(*given, **options)
        else:
            options["output_final_state"] = True
        calls["tvm_scan, kernel"] = kernel_call(ts.gated_delta_rule, *given, **options)
        times = interleaved(calls, seconds=seconds, least=5, gap=GAP)
    row: dict[str, Any] = {"case": str(case), "forward": {n: told(t) for n, t in times.items()}}
    if 1 < case.length <= MOST_WITH_GRADIENT:
        both = backward_calls(tensors)
        grads = {name: call() for name, call in both.items()}
        for name, found in grads.items():
            pairs = zip(found, grads["tvm_scan"], strict=True)
            for got, want in pairs:
                assert close(got.numpy(), want.numpy(), 1e-3), f"{case}, {name}: another gradient"
        times = interleaved(both, seconds=seconds, least=3, gap=GAP)
        row["backward"] = {n: told(t) for n, t in times.items()}
        row["peak"] = {n: peak_bytes(call) for n, call in both.items()}
    return row


def told(times: Times) -> dict[str, float]:
    """Milliseconds and spread."""
    return {"ms": times.median * 1e3, "spread": times.spread}


def few_heads() -> float:
    """Milliseconds of few heads with the threads that there are."""
    with torch.no_grad():
        tensors = inputs(FEW)
        times = interleaved({"tvm_scan": lambda: ours(**tensors)}, seconds=0.5, least=5)
    return times["tvm_scan"].median * 1e3


def with_threads(count: int) -> float:
    """The same in a process with so many threads."""
    command = [sys.executable, "-m", "bench.delta", "--few"]
    environment = os.environ | {"TVM_NUM_THREADS": str(count)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main(argv: list[str] | None = None) -> int:
    """Print the table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--quick", action="store_true", help="two small cases only")
    parser.add_argument("--longest", type=int, default=max(LENGTHS), help="of the cases")
    parser.add_argument("--seconds", type=float, default=1.0, help="for the ways of a case")
    parser.add_argument("--few", action="store_true", help="few heads alone, for one process")
    args = parser.parse_args(argv)
    if args.few:
        print(few_heads())
        return 0
    # Of transformers, that it is slow here: so it is.
    logging.getLogger("transformers").setLevel(logging.ERROR)
    missing = {delta_vllm.WAY: delta_vllm.why_missing()}
    if onnxruntime_call(inputs(Case(1, 1, 1, 16))) is None:
        missing["onnxruntime"] = "no package onnxruntime"
    missing = {name: reason for name, reason in missing.items() if reason}
    for name, reason in missing.items():
        print(f"{name}: not available: {reason}")
    small = [Case(4, 2, 1, 64), Case(4, 2, 40, 64)]
    cases = small if args.quick else [c for c in CASES if c.length <= args.longest]
    rows = []
    for case in cases:
        rows.append(measure(case, 0.05 if args.quick else args.seconds))
        print_row(rows[-1])
    threads: dict[str, float] = {}
    if not args.quick and args.longest >= FEW.length:
        threads = {str(n): with_threads(n) for n in (1, 2)}
        print(f"{FEW}: " + ", ".join(f"{n} threads {ms:.1f} ms" for n, ms in threads.items()))
    if args.json:
        about = machine(host_target()) | {"torch": torch.__version__}
        few = {"case": str(FEW), "ms": threads}
        result = {"machine": about, "rows": rows, "few": few, "missing": missing}
        result["peak"] = peak()
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


def print_row(row: dict[str, Any]) -> None:
    """Print the milliseconds of a case, and the ratio to ours."""
    for kind in ("forward", "backward"):
        if kind in row:
            base = row[kind]["tvm_scan"]["ms"]
            parts = (f"{n} {t['ms']:.3g} ms ({t['ms'] / base:.2f})" for n, t in row[kind].items())
            print(f"{row['case']:<24} {kind:<8} " + ", ".join(parts), flush=True)
    if "peak" in row:
        print(" " * 25 + "peak     " + ", ".join(f"{n} {b} bytes" for n, b in row["peak"].items()))


if __name__ == "__main__":
    raise SystemExit(main())
