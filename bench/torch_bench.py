"""Forward and backward of the torch functions against PyTorch: time in turns, memory apart.

``python -m bench.torch_bench`` prints a page and writes bench/results/torch.json. The methods of a
case take turns in one process. Peak memory is measured in a process of its own for each method:
the resident set's maximum during one forward and backward pass, less what it was before.

Methods: ``tvm_scan``; ``loop``: one step after another in PyTorch, as mamba-ssm's reference and
transformers' eager path do it; ``doubling``: the log-depth scan over all states at once, as
mamba.py's and accelerated-scan's reference do it; ``torch``: PyTorch's own function.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import tvm_scan.torch as ts

RESULTS = Path(__file__).parent / "results" / "torch.json"


def doubling(a: Tensor, x: Tensor) -> Tensor:
    """``h[t] = a[t] h[t-1] + x[t]`` along the last axis in log2(L) passes over all of it."""
    reach = 1
    while reach < x.shape[-1]:
        x = torch.cat((x[..., :reach], x[..., reach:] + a[..., reach:] * x[..., :-reach]), -1)
        a = torch.cat((a[..., :reach], a[..., reach:] * a[..., :-reach]), -1)
        reach *= 2
    return x


def linear_loop(a: Tensor, x: Tensor) -> Tensor:
    state, states = torch.zeros_like(x[..., 0]), []
    for gate, value in zip(a.unbind(-1), x.unbind(-1), strict=True):
        state = gate * state + value
        states.append(state)
    return torch.stack(states, -1)


def selective(scan: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def run(u, delta, A, B, C, D, z, bias) -> Tensor:
        dt = F.softplus(delta + bias[:, None])
        decay = torch.exp(dt[:, :, None] * A[:, :, None])
        drive = (dt * u)[:, :, None] * B[:, None]
        y = (scan(decay, drive) * C[:, None]).sum(2) + D[:, None] * u
        return y * F.silu(z)

    return run


def selective_loop(u, delta, A, B, C, D, z, bias) -> Tensor:
    dt = F.softplus(delta + bias[:, None])
    decay = torch.exp(dt[:, :, None] * A[:, :, None])  # as both references: before the loop
    drive = (dt * u)[:, :, None] * B[:, None]
    h, ys = u.new_zeros(u.shape[0], *A.shape), []
    for t in range(u.shape[2]):
        h = decay[..., t] * h + drive[..., t]
        ys.append((h * C[:, None, :, t]).sum(-1))
    return (torch.stack(ys, 2) + D[:, None] * u) * F.silu(z)


def selective_inputs(batch, channels, length, states):
    sequence, projection = (batch, channels, length), (batch, states, length)
    shapes = [sequence, sequence, (channels, states), projection, projection]
    tensors = [torch.randn(s) for s in (*shapes, (channels,), sequence, (channels,))]
    tensors[1] = tensors[1] - 2
    tensors[2] = -torch.rand(channels, states)
    return tensors


def linear_inputs(*shape):
    return [torch.rand(shape), torch.randn(shape)]


SELECTIVE = {
    "tvm_scan": lambda *t: ts.selective_scan_fn(*t, delta_softplus=True),
    "loop": selective_loop,
    "doubling": selective(doubling),
}
LINEAR = {"tvm_scan": ts.linear_recurrence, "loop": linear_loop, "doubling": doubling}


def pair(name, pick=lambda out: out):
    return {
        "tvm_scan": lambda x: pick(getattr(ts, name)(x, 1)),
        "torch": lambda x: pick(getattr(torch, name)(x, 1)),
    }


# case -> inputs, methods
CASES = {
    "selective_scan(1, 384, 2048, 16)": (lambda: selective_inputs(1, 384, 2048, 16), SELECTIVE),
    "selective_scan(2, 256, 512, 16)": (lambda: selective_inputs(2, 256, 512, 16), SELECTIVE),
    "linear_recurrence(512, 4096)": (lambda: linear_inputs(512, 4096), LINEAR),
    "cumsum(512, 4096)": (lambda: [torch.randn(512, 4096)], pair("cumsum")),
    "cumprod(512, 4096)": (lambda: [torch.rand(512, 4096) + 0.5], pair("cumprod")),
    "logcumsumexp(512, 4096)": (lambda: [torch.randn(512, 4096)], pair("logcumsumexp")),
    "cummax(512, 4096)": (
        lambda: [torch.randn(512, 4096)],
        pair("cummax", lambda out: out.values),
    ),
}


def passes(case: str, method: str) -> Callable[[], None]:
    """One forward and backward pass."""
    torch.manual_seed(0)
    make, methods = CASES[case]
    inputs = [t.requires_grad_() for t in make()]
    upstream = torch.randn_like(inputs[-1] if len(inputs) < 8 else inputs[0])

    def run() -> None:
        torch.autograd.grad(methods[method](*inputs), inputs, upstream)

    return run


def peak_bytes(case: str, method: str) -> int:
    """Extra resident memory of one pass, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.torch_bench", "--peak", case, method],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def print_peak(case: str, method: str) -> None:
    # A small pass first: libraries and kernels are loaded, the threads are started.
    small = CASES["selective_scan(2, 256, 512, 16)"][0]()
    small = [t[..., :8].contiguous().requires_grad_() if t.dim() == 3 else t for t in small]
    torch.autograd.grad(SELECTIVE["tvm_scan"](*small).sum(), small[0])
    run = passes(case, method)
    # Not getrusage: its maximum is inherited from the process that started this one.
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident_peak()
    run()
    print(_resident_peak() - before)


def _resident_peak() -> int:
    """Bytes; Linux counts them since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def overhead() -> dict[str, float]:
    """Microseconds of a call on (2, 8) elements, without gradients."""
    from bench.timing import interleaved

    x, out = torch.ones(1, 8, 2), torch.empty(1, 8, 2)
    compiled = ts.compile(_cumsum_loop())
    flat, target = torch.ones(2, 8), torch.empty(2, 8)
    operator = torch.ops.tvm_scan.cumulative.default
    calls = {
        "tvm_scan.torch.cumsum": lambda: ts.cumsum(x, 1),
        "the operator under it": lambda: operator(x, "add", False, False),
        "tvm_scan.torch.compile(..)(x, out)": lambda: compiled(flat, target),
        "its kernel alone": lambda: compiled._call(flat, target),
        "torch.cumsum": lambda: torch.cumsum(x, 1),
        "torch.cumsum(out=)": lambda: torch.cumsum(x, 1, out=out),
    }
    with torch.no_grad():
        return {name: t.median * 1e6 for name, t in interleaved(calls, seconds=1.0).items()}


def _cumsum_loop():
    from tvm_scan import library

    return library.cumsum(None, None)


def measure(case: str, seconds: float) -> dict[str, dict[str, float]]:
    from bench.timing import interleaved

    methods = CASES[case][1]
    times = interleaved({m: passes(case, m) for m in methods}, seconds=seconds, least=3)
    return {
        m: {
            "milliseconds": t.median * 1e3,
            "spread": t.spread,
            "peak_bytes": peak_bytes(case, m),
        }
        for m, t in times.items()
    }


def page(results: dict, calls: dict[str, float]) -> str:
    lines = [
        "| case | method | ms | spread | times tvm_scan | peak MB |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for case, methods in results.items():
        ours = methods["tvm_scan"]["milliseconds"]
        for method, found in methods.items():
            lines.append(
                f"| {case} | {method} | {found['milliseconds']:.1f} | {found['spread']:.0%} | "
                f"{found['milliseconds'] / ours:.1f} | {found['peak_bytes'] / 1e6:.0f} |"
            )
    lines += ["", "| call on (8, 2), no gradient | microseconds |", "|---|---:|"]
    lines += [f"| {name} | {value:.1f} |" for name, value in calls.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each case")
    parser.add_argument("--only", nargs="*", default=list(CASES), help="cases to measure")
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "METHOD"), help="for this script")
    chosen = parser.parse_args()
    if chosen.peak:
        print_peak(*chosen.peak)
        return
    results = {case: measure(case, chosen.seconds) for case in chosen.only}
    calls = overhead()
    from bench.timing import machine
    from tvm_scan.schedules.default import host_target

    about = machine(host_target()) | {"torch": torch.__version__}
    RESULTS.write_text(
        json.dumps({"machine": about, "passes": results, "calls_us": calls}, indent=1) + "\n",
        encoding="utf-8",
    )
    print(page(results, calls))


if __name__ == "__main__":
    main()
