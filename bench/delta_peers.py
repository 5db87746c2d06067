"""How others run the gated delta rule on a CPU; each is called on the same tensors.

``onnxruntime`` is its operator LinearAttention, ``transformers`` the chunked path of the installed
transformers, ``stepwise`` its path step after step. ``tiles in C`` keeps 64 columns of a state in
the first cache, and reads a row for the next step while it is in registers; ``loop in C`` is what
one writes down first.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.onnxruntime_call import is_installed, operator_call

__all__ = ["c_calls", "onnxruntime_call", "peak", "transformers_rules"]

#: Called with the tensors of a case; outputs, and the states after time.
Rule = Callable[..., tuple[Tensor, Tensor]]

_C = """
#include <string.h>
#include <omp.h>
typedef float vec __attribute__((vector_size(64), aligned(4)));

/* G value heads share a head of q and k; all arrays are (length, heads, .). */
void loop(long T, long H, long G, long K, long V, float scale, const float* q, const float* k,
          const float* v, const float* g, const float* b, const float* first, float* y, float* last)
{
  memcpy(last, first, sizeof(float) * H * K * V);
  #pragma omp parallel for
  for (long h = 0; h < H; ++h) {
    float u[V], *S = last + h * K * V;
    for (long t = 0; t < T; ++t) {
      const float *kt = k + (t * (H / G) + h / G) * K, *qt = q + (t * (H / G) + h / G) * K;
      const float *vt = v + (t * H + h) * V;
      float *yt = y + (t * H + h) * V, gate = __builtin_expf(g[t * H + h]), rate = b[t * H + h];
      for (long j = 0; j < V; ++j) u[j] = 0;
      for (long i = 0; i < K; ++i)
        for (long j = 0; j < V; ++j) u[j] += kt[i] * (S[i * V + j] *= gate);
      for (long j = 0; j < V; ++j) { u[j] = rate * (vt[j] - u[j]); yt[j] = 0; }
      for (long i = 0; i < K; ++i)
        for (long j = 0; j < V; ++j) yt[j] += scale * qt[i] * (S[i * V + j] += kt[i] * u[j]);
    }
  }
}

void tiles(long T, long H, long G, long K, long V, float scale, const float* q, const float* k,
           const float* v, const float* g, const float* b, const float* first, float* y,
           float* last)
{
  const long blocks = V / 64;
  #pragma omp parallel for schedule(static)
  for (long task = 0; task < H * blocks; ++task) {
    const long h = task / blocks, c = task % blocks * 64, heads = H / G;
    vec S[K][4], dot[4] = {0};
    for (long i = 0; i < K; ++i) memcpy(S[i], first + (h * K + i) * V + c, 256);
    for (long i = 0; i < K; ++i)
      for (int n = 0; n < 4; ++n) dot[n] += k[h / G * K + i] * S[i][n];
    for (long t = 0; t < T; ++t) {
      const float *kt = k + (t * heads + h / G) * K, *qt = q + (t * heads + h / G) * K;
      const float *next = t + 1 < T ? kt + heads * K : kt;
      const float *vt = v + (t * H + h) * V + c;
      const float gate = __builtin_expf(g[t * H + h]), rate = b[t * H + h];
      vec u[4], out[4] = {0}, known[4] = {0};
      memcpy(u, vt, 256);
      for (int n = 0; n < 4; ++n) u[n] = rate * (u[n] - gate * dot[n]);
      for (long i = 0; i < K; ++i)
        for (int n = 0; n < 4; ++n) {
          const vec s = gate * S[i][n] + kt[i] * u[n];
          S[i][n] = s;
          out[n] += qt[i] * s;
          known[n] += next[i] * s;
        }
      for (int n = 0; n < 4; ++n) { out[n] *= scale; dot[n] = known[n]; }
      memcpy(y + (t * H + h) * V + c, out, 256);
    }
    for (long i = 0; i < K; ++i) memcpy(last + (h * K + i) * V + c, S[i], 256);
  }
}

/* Billions of products with a sum a second, all threads together, out of registers. */
double peak(long rounds, float* used)
{
  double seconds = 0, total = 0;
  #pragma omp parallel reduction(max : seconds) reduction(+ : total)
  {
    vec a[12], x, y;
    for (int j = 0; j < 16; ++j) x[j] = 0.999f, y[j] = 1e-3f;
    for (int i = 0; i < 12; ++i) a[i] = y * (float)i;
    #pragma omp barrier
    const double start = omp_get_wtime();
    for (long n = 0; n < rounds; ++n)
      for (int i = 0; i < 12; ++i) a[i] = a[i] * x + y;
    seconds = omp_get_wtime() - start;
    for (int i = 1; i < 12; ++i) a[0] += a[i];
    memcpy(used + 16 * omp_get_thread_num(), a, 64);
    total = rounds * 12.0 * 16.0;
  }
  return total / seconds * 1e-9;
}
"""


@cache
def _library() -> Any:
    """Both functions in C; None without gcc."""
    if shutil.which("gcc") is None:
        return None
    folder = Path(tempfile.mkdtemp())
    (folder / "delta.c").write_text(_C)
    flags = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-fopenmp"]
    command = ["gcc", *flags, "-shared", "-fPIC", str(folder / "delta.c"), "-lm"]
    subprocess.run([*command, "-o", str(folder / "delta.so")], check=True)
    return ctypes.CDLL(str(folder / "delta.so"))


def c_calls(tensors: Mapping[str, Tensor]) -> dict[str, Callable[[], tuple[Tensor, Tensor]]]:
    """The two functions in C on the tensors q, k, v, g, beta and state; none without gcc."""
    library = _library()
    if library is None:
        return {}
    q, v, state = tensors["q"], tensors["v"], tensors["state"]
    (_, length, heads, keys), (values, columns) = q.shape, v.shape[2:]
    y, last = torch.empty_like(v), torch.empty_like(state)
    sizes = [ctypes.c_long(n) for n in (length, values, values // heads, keys, columns)]
    named = [tensors[n] for n in ("q", "k", "v", "g", "beta", "state")]
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (*named, y, last)]

    def call(function: Any) -> Callable[[], tuple[Tensor, Tensor]]:
        def run() -> tuple[Tensor, Tensor]:
            function(*sizes, ctypes.c_float(keys**-0.5), *pointers)
            return y, last

        return run

    calls = {"loop in C": call(library.loop)}
    if columns % 64 == 0:
        calls["tiles in C"] = call(library.tiles)
    return calls


def peak() -> float | None:
    """Billions of products with a sum a second on all cores; None without gcc."""
    library = _library()
    if library is None:
        return None
    library.peak.restype = ctypes.c_double
    used = torch.empty(16 * 1024)  # or it would compute nothing
    pointer = ctypes.c_void_p(used.data_ptr())
    return max(library.peak(ctypes.c_long(20_000_000), pointer) for _ in range(3))


def onnxruntime_call(
    tensors: Mapping[str, Tensor],
) -> Callable[[], tuple[Tensor, Tensor]] | None:
    """Its operator on the same tensors, without a copy; None where it is not installed."""
    if not is_installed():
        return None
    q, v = tensors["q"], tensors["v"]
    length, heads, keys, values = q.shape[1], q.shape[2], q.shape[3], v.shape[2]
    inputs = {
        name: (tensors[short].flatten(2) if short in "qkv" else tensors[short]).numpy()
        for name, short in (
            *(("query", "q"), ("key", "k"), ("value", "v"), ("past_state", "state")),
            *(("decay", "g"), ("beta", "beta")),
        )
    }
    y, last = torch.empty(1, length, v[0, 0].numel()), torch.empty_like(tensors["state"])
    call = operator_call(
        "LinearAttention",
        inputs,
        {"output": y.numpy(), "present_state": last.numpy()},
        threads=torch.get_num_threads(),
        domain="com.microsoft",
        update_rule="gated_delta",
        q_num_heads=heads,
        kv_num_heads=values,
        scale=keys**-0.5,
    )

    def run() -> tuple[Tensor, Tensor]:
        call()
        return y.view(v.shape), last

    return run


def transformers_rules() -> dict[str, Rule]:
    """Its chunked path and its path step after step; none where it is not installed."""
    if importlib.util.find_spec("transformers") is None:
        return {}
    module = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    names = {
        "transformers": "torch_chunk_gated_delta_rule",
        "stepwise": "torch_recurrent_gated_delta_rule",
    }

    def rule(name: str) -> Rule:
        function = getattr(module, name)

        def run(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Any:
            known = {"initial_state": state, "output_final_state": True}
            return function(q, k, v, g=g, beta=beta, **known)

        return run

    return {short: rule(name) for short, name in names.items()}
