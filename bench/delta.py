"""The gated delta rule on a CPU: in chunks, as the loop it was, and as a loop in C over vectors.

python -m bench.delta [--quick] [--json bench/results/delta.json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.target import Target

from bench.answers import close
from bench.timing import interleaved, machine
from tvm_scan import parallelize
from tvm_scan.loops.linear_attention import LinearAttention

__all__ = ["main"]

#: Heads, steps, elements of a key and of a value.
CASES = [
    (4, 1, 64, 64),
    (4, 64, 64, 64),
    (1, 2048, 64, 64),
    (4, 2048, 64, 64),
    (4, 2048, 128, 128),
    (32, 2048, 64, 64),
]
_C = """
void loop(long H, long T, long K, long V, const float* q, const float* k, const float* v,
          const float* s0, const float* g, const float* b, float* y, float* s) {
  #pragma omp parallel for
  for (long h = 0; h < H; ++h) {
    float u[V], *S = s + h * K * V;
    for (long i = 0; i < K * V; ++i) S[i] = s0[h * K * V + i];
    for (long t = 0; t < T; ++t) {
      const float *kt = k + (t * H + h) * K, *qt = q + (t * H + h) * K;
      const float *vt = v + (t * H + h) * V;
      float *yt = y + (t * H + h) * V, gate = __builtin_expf(g[t * H + h]), rate = b[t * H + h];
      for (long j = 0; j < V; ++j) u[j] = 0;
      for (long i = 0; i < K; ++i)
        for (long j = 0; j < V; ++j) u[j] += kt[i] * (S[i * V + j] *= gate);
      for (long j = 0; j < V; ++j) { u[j] = rate * (vt[j] - u[j]); yt[j] = 0; }
      for (long i = 0; i < K; ++i)
        for (long j = 0; j < V; ++j) yt[j] += qt[i] * (S[i * V + j] += kt[i] * u[j]);
    }
  }
}
"""


def _c_loop() -> Any:
    """The loop in C, its inner loops over the columns of the state; None without gcc."""
    if shutil.which("gcc") is None:
        return None
    folder = Path(tempfile.mkdtemp())
    (folder / "loop.c").write_text(_C)
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
    command = ["gcc", *flags, str(folder / "loop.c"), "-o", str(folder / "loop.so"), "-lm"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(folder / "loop.so")).loop


def inputs(heads: int, length: int, keys: int, values: int) -> list[np.ndarray]:
    """Unit keys, gates below 1, rates from 0 to 1."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, length, heads, keys))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v = rng.standard_normal((length, heads, values))
    state = rng.standard_normal((heads, keys, values))
    decay = -np.exp(rng.standard_normal((length, heads, 1)) - 2)
    arrays = (q[:, :, None], k, v, state, decay, rng.random((length, heads)))
    return [np.ascontiguousarray(a[None], "float32") for a in arrays]


def in_float64(given: list[np.ndarray]) -> np.ndarray:
    """Outputs of the loop, one step after another: steps, heads, values."""
    q, k, v, state, decay, rate = (a[0].astype("float64") for a in given)
    out = []
    for t in range(len(k)):
        state = state * np.exp(decay[t])[:, :, None]
        missing = v[t] - np.einsum("hk,hkv->hv", k[t], state)
        state = state + np.einsum("h,hk,hv->hkv", rate[t], k[t], missing)
        out.append(np.einsum("hk,hkv->hv", q[t, :, 0], state))
    return np.array(out)


def shape_of(case: tuple[int, int, int, int]) -> str:
    """Sizes as text."""
    return " x ".join(map(str, case))


def measure(case: tuple[int, int, int, int], target: Target, native: Any) -> dict[str, Any]:
    """Time the ways in turns, whose results are compared with float64 first."""
    heads, length, keys, values = case
    op = LinearAttention("gated_delta", heads, heads, keys, values, 1.0, 1, length,
                         "float32", "float32", heads, heads, True)  # fmt: skip
    loop = op.loop().with_attr("global_symbol", "main")
    given = inputs(*case)
    calls: dict[str, Callable[[], Any]] = {}
    results: dict[str, np.ndarray] = {}
    for name, func in (("chunks", parallelize(loop, target)), ("loop", loop)):
        outs = [np.zeros((1, length, heads, 1, values), "float32"), np.zeros_like(given[3])]
        tensors = [tvm.runtime.tensor(a) for a in (*given, *outs)]
        built = tvm.compile(func, target=target)["main"]
        calls[name] = lambda built=built, tensors=tensors: built(*tensors)
        calls[name]()
        results[name] = tensors[-2].numpy()
    if native is not None:
        outs = [np.zeros((1, length, heads, 1, values), "float32"), np.zeros_like(given[3])]
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (*given, *outs)]
        sizes = [ctypes.c_long(n) for n in case]
        calls["c"] = lambda: native(*sizes, *pointers)
        calls["c"]()
        results["c"] = outs[0]
    want = in_float64(given)
    for name, result in results.items():
        assert close(result[0, :, :, 0], want, 1e-4), f"{shape_of(case)}, {name}: a wrong result"
    # The C loop waits by spinning, as TVM does: each is asleep when the other begins.
    times = interleaved(calls, least=5, gap=0.02)
    row = {f"{name}_ms": times[name].median * 1e3 for name in calls}
    return {"case": shape_of(case), **row, "ratio": row["loop_ms"] / row["chunks_ms"]}


def main(argv: list[str] | None = None) -> int:
    """Print the table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the result")
    parser.add_argument("--quick", action="store_true", help="the first two cases only")
    args = parser.parse_args(argv)
    target, native = Target.from_device("cpu"), _c_loop()
    heads = ("chunks", "loop", "C", "loop/chunks")
    print(f"{'heads x steps x key x value':<28} " + " ".join(f"{h:>11}" for h in heads))
    rows = []
    for case in CASES[:2] if args.quick else CASES:
        rows.append(measure(case, target, native))
        row = {"c_ms": float("nan"), **rows[-1]}
        print(
            "{case:<28} {chunks_ms:>9.3f}ms {loop_ms:>9.2f}ms {c_ms:>9.3f}ms {ratio:>11.1f}".format(
                **row
            )
        )
    if args.json:
        result = {"machine": machine(target), "rows": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
