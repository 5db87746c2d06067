"""How long nobody waits: the first call of every function, and that of the next process.

python -m bench.torch_first_call [--only cumsum gla] [--json bench/results/torch_first_call.json]
    [--write]

Each function runs forward and backward in a process with an empty cache, then in another one with
what the first left. The time to import is apart. Before all that the package is compiled to
bytecode, as its installation does. Threads of torch's that wait do not spin: where another process
has a core, spinning made an ``exp`` of 64,000 floats take 16 ms instead of 0.2, and a backward
pass of ten such operators twice as long as what it compiles.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from bench import torch_page

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
#: Name -> inputs and call; what a child runs.
CALLS = {
    "cumsum": "[r(64, 1000)], lambda x: ts.cumsum(x, 1)",
    "cumprod": "[r(64, 1000)], lambda x: ts.cumprod(x, 1)",
    "cummax": "[r(64, 1000)], lambda x: ts.cummax(x, 1).values",
    "logcumsumexp": "[r(64, 1000)], lambda x: ts.logcumsumexp(x, 1)",
    "linear_recurrence": "[r(64, 1000), r(64, 1000)], ts.linear_recurrence",
    "lfilter": "[r(2, 1000), r(3), r(3)], lambda x, a, b: ts.lfilter(x, 2 + a, b)",
    "selective_scan_fn": (
        "[r(1, 64, 500), r(1, 64, 500), -r(64, 16), r(1, 16, 500), r(1, 16, 500)], "
        "ts.compat.selective_scan_fn"
    ),
    "ssd": ("[r(1, 500, 4, 16), r(1, 500, 4), -r(4), r(1, 500, 1, 16), r(1, 500, 1, 16)], ts.ssd"),
    "rglru": "[r(1, 500, 64), r(1, 500, 64), r(1, 500, 64), r(64)], ts.rglru",
    "hgrn": "[r(1, 500, 64), r(1, 500, 64)], ts.hgrn",
    "gla": "[r(1, 500, 2, 16), r(1, 500, 2, 16), r(1, 500, 2, 16), -r(1, 500, 2, 16)], ts.gla",
    "rwkv6": (
        "[r(1, 500, 2, 16), r(1, 500, 2, 16), r(1, 500, 2, 16), -r(1, 500, 2, 16), r(2, 16)], "
        "ts.rwkv6"
    ),
    "associative_scan": (
        "[r(500, 64), r(500, 64)], lambda a, x: ts.associative_scan("
        "lambda p, q: (q[0] * p[0], q[0] * p[1] + q[1]), (a, x))[1]"
    ),
    "scan": (
        "[r(500, 64), r(500, 64)], lambda a, x: ts.scan("
        "lambda c, ax: (ax[0] * c + ax[1],) * 2, torch.zeros(64), (a, x))[1]"
    ),
}

_CHILD = """
import time
start = time.perf_counter()
import torch
torches = time.perf_counter()
import tvm_scan.torch as ts
r = torch.rand
ready = time.perf_counter()
inputs, call = {call}
inputs = [t.requires_grad_() for t in inputs]
made = time.perf_counter()
with torch.no_grad():
    call(*inputs)
forward = time.perf_counter()
torch.autograd.grad(call(*inputs).sum(), inputs, allow_unused=True)
print(torches - start, ready - torches, forward - made, time.perf_counter() - forward)
"""
_PARTS = ("torch", "import", "forward", "backward")


def run(name: str, cache: str) -> dict[str, float]:
    """Seconds of the parts of one process."""
    done = subprocess.run(
        [sys.executable, "-c", _CHILD.replace("{call}", CALLS[name])],
        env={"OMP_WAIT_POLICY": "passive", **os.environ, "TVM_SCAN_CACHE": cache},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(_PARTS, map(float, done.stdout.split()), strict=True))


def main(argv: list[str] | None = None) -> int:
    """Print the table; write it as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(CALLS), choices=list(CALLS))
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--write", action="store_true", help="write docs/torch/kernels.md")
    args = parser.parse_args(argv)
    for folder in ("tvm_scan", "schedules", "meta"):
        compileall.compile_dir(ROOT / folder, quiet=1)
    begin, results = time.perf_counter(), {}
    print("\n".join(torch_page.FIRST_CALLS))
    for name in args.only:
        with tempfile.TemporaryDirectory() as cache:
            first, following = run(name, cache), run(name, cache)
        results[name] = {"first": first, "next": following}
        print(torch_page.first_call(name, results[name]), flush=True)
    imports = [r["next"]["import"] for r in results.values()]
    print(f"\nimport tvm_scan.torch, behind torch: {min(imports):.2f} s and more")
    print(f"{time.perf_counter() - begin:.0f} s in all")
    # Behind what is measured: nothing of this process may have loaded it.
    from bench.timing import machine
    from tvm_scan.arguments import host_target

    about = machine(host_target()) | {"torch": metadata.version("torch")}
    result = {"machine": about, "seconds": results}
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.write:
        text = torch_page.first_calls(result)
        torch_page.write(torch_page.DOCS / "kernels.md", "first_call", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
