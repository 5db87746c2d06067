"""What ``bench.gpu`` runs: loops, their inputs and float64 results, and the ladder of plans."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from tvm import tirx
from tvm.script import tirx as T

from tvm_scan import ScanPlan, library, tir
from tvm_scan.library import LIBRARY

__all__ = ["LADDERS", "Case", "check_cases", "ladder", "timed_cases"]

Arrays = dict[str, np.ndarray]


def affine(rows: int, length: int, dtype: str) -> tirx.PrimFunc:
    """``H[t] = A[t] H[t-1] + X[t]`` over any float, carried in float32 for halves."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((rows, length), dtype),
        X: T.Buffer((rows, length), dtype),
        H: T.Buffer((rows, length), dtype),
    ):
        for r in range(T.int64(rows)):
            for t in range(T.int64(length)):
                H[r, t] = (
                    A[r, t] * T.if_then_else(t > T.int64(0), H[r, t - T.int64(1)], T.cast(0, dtype))
                    + X[r, t]
                )

    return func


def rwkv6(heads: int, length: int, size: int) -> tirx.PrimFunc:
    """RWKV-6: ``y = r (S + u k v)``, then ``S = w S + k v``; a lane is a column of a head."""
    keys = (heads, length, size)

    @T.prim_func(s_tir=True)
    def func(
        R: T.Buffer(keys, "float32"),
        K: T.Buffer(keys, "float32"),
        V: T.Buffer(keys, "float32"),
        W: T.Buffer(keys, "float32"),
        U: T.Buffer((heads, size), "float32"),
        Y: T.Buffer(keys, "float32"),
    ):
        for h, v in T.grid(heads, size):
            S = T.sblock_alloc_buffer((size,), "float32")
            y = T.sblock_alloc_buffer((1,), "float32")
            for k in range(size):
                S[k] = T.float32(0)
            for t in range(length):
                y[0] = T.float32(0)
                for k in range(size):
                    y[0] = y[0] + R[h, t, k] * (S[k] + U[h, k] * K[h, t, k] * V[h, t, v])
                    S[k] = W[h, t, k] * S[k] + K[h, t, k] * V[h, t, v]
                Y[h, t, v] = y[0]

    return func


def affine_steps(inputs: Arrays) -> Arrays:
    """The affine loop in float64."""
    a, x = (inputs[name].astype(np.float64) for name in ("A", "X"))
    h, out = np.zeros(len(a)), np.empty(a.shape)
    for t in range(a.shape[1]):
        h = a[:, t] * h + x[:, t]
        out[:, t] = h
    return {"H": out}


def rwkv6_steps(inputs: Arrays) -> Arrays:
    """The RWKV-6 loop in float64."""
    r, k, v, w, u = (inputs[name].astype(np.float64) for name in "RKVWU")
    state, out = np.zeros((len(r), r.shape[2], r.shape[2])), np.empty(r.shape)
    for t in range(r.shape[1]):
        outer = k[:, t, :, None] * v[:, t, None, :]
        out[:, t] = np.einsum("hk,hkv->hv", r[:, t], state + u[:, :, None] * outer)
        state = w[:, t, :, None] * state + outer
    return {"Y": out}


@dataclass(frozen=True, eq=False)
class Case:
    """One loop at one size.

    Attributes
    ----------
    family : {"affine", "cumsum", "selective", "rwkv6"}
        Which loop.
    sizes : tuple of int
        Its sizes, in the order of its factory.
    dtype : str
        Of all arrays.
    """

    family: str
    sizes: tuple[int, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.family} {'x'.join(map(str, self.sizes))} {self.dtype}"

    @property
    def func(self) -> tirx.PrimFunc:
        """The loop."""
        if self.family == "affine":
            return affine(*self.sizes, self.dtype)
        if self.family == "rwkv6":
            return rwkv6(*self.sizes)
        if self.family == "cumsum":
            return library.cumsum(*self.sizes, self.dtype)
        return library.selective_scan(*self.sizes, self.dtype)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Parameters that are written."""
        return {"affine": ("H",), "rwkv6": ("Y",), "cumsum": ("Y",)}.get(self.family, ("out",))

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Values of an input lie in here; gates decay, as a trained model's do."""
        gates = {"A": (0.9, 1.0), "W": (0.9, 1.0)}
        if self.family == "selective":
            gates = {"A": (-2.0, -0.5), "delta": (-4.0, -1.0)}
        read = [p.name for p in self.func.params if p.name not in self.outputs]
        return {name: gates.get(name, (-1.0, 1.0)) for name in read}

    @property
    def moved(self) -> int:
        """Bytes that must be read and written, each element once."""
        width = int("".join(c for c in self.dtype if c.isdigit())) // 8
        shapes = [[int(e) for e in tir.shape_of(p)] for p in self.func.params]
        return sum(int(np.prod(shape)) * width for shape in shapes)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every parameter, in order."""
        return {p.name: tuple(int(e) for e in tir.shape_of(p)) for p in self.func.params}

    @property
    def numpy_dtype(self) -> np.dtype:
        """The dtype as NumPy knows it."""
        return np.dtype(ml_dtypes.bfloat16 if self.dtype == "bfloat16" else self.dtype)

    def inputs(self, rng: np.random.Generator) -> Arrays:
        """Random inputs on the host."""
        shapes = self.shapes()
        return {
            name: rng.uniform(low, high, shapes[name]).astype(self.numpy_dtype)
            for name, (low, high) in self.ranges().items()
        }

    def expected(self, inputs: Arrays) -> Arrays:
        """What the loop makes of them, in float64."""
        if self.family == "affine":
            return affine_steps(inputs)
        if self.family == "rwkv6":
            return rwkv6_steps(inputs)
        name = "cumsum" if self.family == "cumsum" else "selective_scan"
        found: Arrays = LIBRARY[name].expected(inputs)
        return found


def check_cases(tiny: bool) -> list[Case]:
    """Cases in which every plan of the ladder is compared with float64."""
    if tiny:
        return [
            Case("affine", (2, 72)),
            Case("affine", (2, 72), "bfloat16"),
            Case("selective", (1, 8, 24, 16)),
        ]
    return [
        Case("affine", (8 * 1536, 1024)),
        Case("affine", (8 * 1536, 1023)),
        Case("affine", (8 * 1536, 1024), "bfloat16"),
        Case("cumsum", (64, 32768)),
        Case("cumsum", (1, 1 << 20)),
        Case("selective", (2, 2048, 512, 16)),
        Case("rwkv6", (32, 512, 64)),
    ]


def timed_cases() -> list[Case]:
    """Cases in the order in which they are timed: those of the targets first."""
    affines = [Case("affine", (8 * 1536, 1 << k), d) for k in (12, 16, 9, 14, 7, 10) for d in _BOTH]
    sums = [(1, 1 << 28), (64, 32768), (2048, 4096), (1, 1 << 24), (1, 1 << 20), (1, 1 << 16)]
    scans = [
        (b, d, length, 16) for length in (2048, 512, 8192, 65536) for b in (8, 1) for d in _WIDE
    ]
    few = [s for s in scans if s[0] * s[1] * s[2] <= 1 << 28]
    return [
        *affines[:2],
        *(Case("cumsum", s) for s in sums[:3]),
        *(Case("selective", s) for s in few[:4]),
        Case("rwkv6", (32, 1024, 64)),
        *affines[2:],
        *(Case("cumsum", s) for s in sums[3:]),
        *(Case("selective", s) for s in few[4:]),
        *(Case("rwkv6", (32, t, 64)) for t in (128, 8192)),
    ]


_BOTH = ("float32", "bfloat16")
_WIDE = (2048, 4096)

_TILES = "cuda/serial_tiles(threads_per_block=128, items_per_thread="
#: The ablation: every step adds one of the choices of the plan.
LADDERS: dict[str, dict[str, str]] = {
    "affine": {
        "thread per lane": "cuda/lanes(threads_per_block=128)",
        "tree, scalar loads": _TILES + "1)",
        "8 items": _TILES + "8)",
        "vector loads": _TILES + "8, vector_loads=True)",
        "Kogge-Stone": _TILES + "8, block_tree=kogge_stone, vector_loads=True)",
        "shuffles": _TILES + "8, block_tree=warp, vector_loads=True)",
        "16 items": _TILES + "16, block_tree=warp, vector_loads=True)",
    },
    "selective": {
        "thread per lane": "cuda/lanes(threads_per_block=128)",
        "tree": _TILES + "4)",
        "tree, shuffles": _TILES + "4, block_tree=warp, vector_loads=True)",
        **{
            f"{s} threads per lane": "cuda/lanes(threads_per_block=128, items_per_thread=4, "
            f"vector_loads=True, threads_per_lane={s})"
            for s in (2, 4, 8, 16)
        },
    },
}
LADDERS["cumsum"] = LADDERS["affine"]
LADDERS["rwkv6"] = {
    k: v for k, v in LADDERS["selective"].items() if k.startswith(("thread", "8", "16"))
}


def ladder(case: Case) -> dict[str, ScanPlan]:
    """Plans of a case by name."""
    return {name: ScanPlan.parse(text) for name, text in LADDERS[case.family].items()}
