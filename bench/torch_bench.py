"""Forward and backward of the torch functions against PyTorch: time in turns, memory apart.

``python -m bench.torch_bench`` prints a table and writes bench/results/torch.json after every case;
``--resume`` goes on from there, ``--write`` puts the table into docs/torch/measurements.md. The
methods of a case take turns in one process, each behind a pause in which the threads of the one
before fall asleep; every method's result and gradients are compared with float64 before that. Peak
memory is measured in a process of its own for each method: the resident set's maximum during the
second forward and backward pass, which finds everything loaded and compiled, less what it was
before (on a GPU, what torch allocated). ``--device cuda`` measures on a GPU, and writes
torch_cuda.json. ``--quick`` takes small cases, and writes nothing unless ``--out`` names a file.

Methods: ``tvm_scan``; ``torch``: PyTorch's own function; those of `bench.torch_peers`, and
``compiled``: its doubling through torch.compile. transformers' eager path is measured on short
sequences alone: its backward pass grows with the square of the length, to minutes at 2048 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

import torch
from torch import Tensor

import tvm_scan.torch as ts
from bench import torch_page
from bench import torch_peers as peers
from bench.answers import close
from bench.memory import peak_bytes as peak_of

RESULTS = Path(__file__).parent / "results" / "torch.json"


def selective_inputs(batch, channels, length, states):
    sequence, projection = (batch, channels, length), (batch, states, length)
    shapes = [sequence, sequence, (channels, states), projection, projection]
    tensors = [torch.randn(s) for s in (*shapes, (channels,), sequence, (channels,))]
    tensors[1] = tensors[1] - 2
    tensors[2] = -torch.rand(channels, states)
    return tensors


def linear_inputs(*shape):
    return [torch.rand(shape), torch.randn(shape)]


def _ours(*tensors):
    return ts.compat.selective_scan_fn(*tensors, delta_softplus=True)


LONG = {"tvm_scan": _ours, "loop": peers.selective_loop, "sweeps": peers.selective(peers.sweeps)}
SELECTIVE = LONG | {
    "doubling": peers.selective(peers.doubling),
    "compiled": torch.compile(peers.selective(peers.doubling)),
    "tree": peers.selective(peers.tree),
}
SHORT = {"tvm_scan": _ours, "loop": peers.selective_loop}
if util.find_spec("transformers"):
    SHORT["transformers"] = peers.transformers
LINEAR = {
    "tvm_scan": ts.linear_recurrence,
    **{name: getattr(peers, name) for name in ("doubling", "sweeps", "tree")},
    "loop": peers.linear_loop,
}


def pair(name, pick=lambda out: out):
    return {
        "tvm_scan": lambda x: pick(getattr(ts, name)(x, 1)),
        "torch": lambda x: pick(getattr(torch, name)(x, 1)),
    }


def cumulative(name, pick=lambda out: out):
    return {**pair(name, pick), EXACT: lambda x: pick(getattr(torch, name)(x, 1))}


#: What is right in float64; no method that is timed.
EXACT = "float64"
for known in (LONG, SELECTIVE, SHORT):
    known[EXACT] = peers.selective_loop
LINEAR[EXACT] = peers.linear_loop
#: Largest difference over the largest value: of outputs, and of gradients, which sum over lanes.
TOLERANCE = 1e-4


# case -> inputs, methods
CASES = {
    "selective_scan(1, 1536, 2048, 16)": (lambda: selective_inputs(1, 1536, 2048, 16), LONG),
    "selective_scan(1, 1536, 128, 16)": (lambda: selective_inputs(1, 1536, 128, 16), SHORT),
    "selective_scan(2, 256, 512, 16)": (lambda: selective_inputs(2, 256, 512, 16), SELECTIVE),
    "linear_recurrence(512, 4096)": (lambda: linear_inputs(512, 4096), LINEAR),
    "cumsum(512, 4096)": (lambda: [torch.randn(512, 4096)], cumulative("cumsum")),
    "cumprod(512, 4096)": (lambda: [torch.rand(512, 4096) + 0.5], cumulative("cumprod")),
    "logcumsumexp(512, 4096)": (lambda: [torch.randn(512, 4096)], cumulative("logcumsumexp")),
    "cummax(512, 4096)": (
        lambda: [torch.randn(512, 4096)],
        cumulative("cummax", lambda out: out.values),
    ),
}
QUICK = {
    "selective_scan(1, 4, 24, 16)": (lambda: selective_inputs(1, 4, 24, 16), LONG),
    "linear_recurrence(3, 50)": (lambda: linear_inputs(3, 50), LINEAR),
    "cummax(3, 50)": (lambda: [torch.randn(3, 50)], cumulative("cummax", lambda out: out.values)),
}


def methods_of(case: str) -> list[str]:
    """What is timed."""
    return [method for method in {**CASES, **QUICK}[case][1] if method != EXACT]


def passes(case: str, method: str, device: str) -> Callable[[], list[Tensor]]:
    """One forward and backward pass, which returns the output and the gradients."""
    torch.manual_seed(0)
    make, methods = {**CASES, **QUICK}[case]
    dtype = torch.float64 if method == EXACT else torch.float32
    inputs = [t.to(device, dtype).requires_grad_() for t in make()]
    # Drawn as float32 for every method.
    upstream = torch.randn((inputs[-1] if len(inputs) < 8 else inputs[0]).shape)
    upstream = upstream.to(device, dtype)

    def run() -> list[Tensor]:
        out = methods[method](*inputs)
        found = [out, *torch.autograd.grad(out, inputs, upstream)]
        if device == "cuda":
            torch.cuda.synchronize()
        return found

    return run


def require_right(case: str, device: str) -> None:
    """Raise where a method's output or gradient is not that of float64."""
    want = [t.detach().cpu().numpy() for t in passes(case, EXACT, device)()]
    for method in methods_of(case):
        got = [t.detach().cpu().numpy() for t in passes(case, method, device)()]
        for position, pair in enumerate(zip(got, want, strict=True)):
            if not close(*pair, TOLERANCE):
                what = f"gradient {position}" if position else "output"
                raise AssertionError(f"{case}, {method}: expected the {what} of float64")


def peak_bytes(case: str, method: str, device: str) -> int:
    """Extra memory of one pass, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.torch_bench", "--device", device, "--peak", case, method],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def print_peak(case: str, method: str, device: str) -> None:
    if device == "cuda":
        run = passes(case, method, device)
        run()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        print(torch.cuda.max_memory_allocated() - before)
        return
    print(peak_of(passes(case, method, device)))


def overhead(device: str) -> dict[str, float]:
    """Microseconds of a call on (2, 8) elements, without gradients."""
    from bench.timing import interleaved

    x, out = torch.ones(1, 8, 2, device=device), torch.empty(1, 8, 2, device=device)
    operator = torch.ops.tvm_scan.cumulative.default
    calls = {
        "tvm_scan.torch.cumsum": lambda: ts.cumsum(x, 1),
        "the operator under it": lambda: operator(x, "add", False, False),
        "torch.cumsum": lambda: torch.cumsum(x, 1),
        "torch.cumsum(out=)": lambda: torch.cumsum(x, 1, out=out),
    }
    if device == "cpu":
        compiled = ts.compile_primfunc(_cumsum_loop())
        flat, target = torch.ones(2, 8), torch.empty(2, 8)
        calls |= {
            "tvm_scan.torch.compile_primfunc(..)(x)": lambda: compiled(flat),
            "tvm_scan.torch.compile_primfunc(..)(x, out)": lambda: compiled(flat, target),
        }
    with torch.no_grad():
        return {name: t.median * 1e6 for name, t in interleaved(calls, seconds=1.0).items()}


def _cumsum_loop():
    from tvm_scan import library

    return library.cumsum(None, None)


def measure(case: str, seconds: float, device: str) -> dict[str, dict[str, float]]:
    from bench.timing import GAP, interleaved

    require_right(case, device)
    calls = {m: passes(case, m, device) for m in methods_of(case)}
    times = interleaved(calls, seconds=seconds, least=3, gap=GAP)
    return {
        m: {
            "milliseconds": t.median * 1e3,
            "spread": t.spread,
            "peak_bytes": peak_bytes(case, m, device),
        }
        for m, t in times.items()
    }


def known_cases(file: Path, about: dict, seconds: float) -> dict[str, dict]:
    """What an earlier run on this machine, with these settings, has measured already."""
    if not file.is_file():
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    there = found["machine"] | {key: about[key] for key in ("date", "command")}
    return found["passes"] if there == about and found.get("seconds") == seconds else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each case")
    parser.add_argument("--only", nargs="*", help="cases to measure")
    parser.add_argument("--quick", action="store_true", help="small cases")
    parser.add_argument("--out", type=Path, help="another file for the result")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--peak", nargs=2, metavar=("CASE", "METHOD"), help="for this script")
    parser.add_argument("--resume", action="store_true", help="leave out cases that are measured")
    parser.add_argument("--write", action="store_true", help="write docs/torch/measurements.md")
    chosen = parser.parse_args()
    if chosen.peak:
        print_peak(*chosen.peak, chosen.device)
        return
    from bench.timing import machine
    from tvm_scan.arguments import host_target

    about = machine(host_target()) | {"torch": torch.__version__}
    if util.find_spec("transformers"):
        about["transformers"] = metadata.version("transformers")
    if chosen.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name()
    file = RESULTS if chosen.device == "cpu" else RESULTS.with_name("torch_cuda.json")
    file = chosen.out or (Path(os.devnull) if chosen.quick else file)
    done = known_cases(file, about, chosen.seconds) if chosen.resume else {}
    result = {"machine": about, "seconds": chosen.seconds, "passes": done, "calls_us": {}}
    for case in chosen.only or (QUICK if chosen.quick else CASES):
        if case not in done:
            done[case] = measure(case, chosen.seconds, chosen.device)
            # After every case, so that a run that is cut off goes on from there.
            file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    result["calls_us"] = overhead(chosen.device)
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(torch_page.passes(result))
    if chosen.write:
        torch_page.write(
            torch_page.DOCS / "measurements.md", "torch_bench", torch_page.passes(result)
        )


if __name__ == "__main__":
    main()
