"""What ``bench.gpu`` runs: loops, their inputs and float64 results, and the ladder of plans."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from tvm import tirx

from bench.gpu_loops import (
    affine,
    affine_steps,
    gated_delta,
    gated_delta_steps,
    rwkv6,
    rwkv6_steps,
    selective_halves,
)
from tvm_scan import ScanPlan, library, tir
from tvm_scan.delta_rule import TimeLoop
from tvm_scan.errors import PlanError
from tvm_scan.library import LIBRARY
from tvm_scan.schedules.analysis import analyse

__all__ = [
    "LADDERS",
    "Arrays",
    "Case",
    "check_cases",
    "dry_cases",
    "ladder",
    "peer_cases",
    "timed_cases",
]

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Case:
    """One loop at one size.

    Attributes
    ----------
    family : {"affine", "cumsum", "selective", "rwkv6", "delta"}
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
        if self.family == "delta":
            return gated_delta(*self.sizes)
        if self.family == "cumsum":
            return library.cumsum(*self.sizes, self.dtype)
        if self.dtype == "bfloat16":
            return selective_halves(*self.sizes, self.dtype)
        return library.selective_scan(*self.sizes, self.dtype)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Parameters that are written."""
        names = {"affine": ("H",), "rwkv6": ("Y",), "cumsum": ("Y",)}
        return {**names, "delta": ("output", "present_state")}.get(self.family, ("out",))

    @property
    def recurrence(self) -> TimeLoop:
        """What the loop is proven to be."""
        (found,) = analyse(self.func).accepted
        return found

    def ranges(self) -> dict[str, tuple[float, float]]:
        """Values of an input lie in here; gates decay, as a trained model's do."""
        gates = {"A": (0.9, 1.0), "W": (0.9, 1.0)}
        if self.family == "selective":
            gates = {"A": (-2.0, -0.5), "delta": (-4.0, -1.0)}
        if self.family == "delta":
            # Of length one, nearly: the rule forgets along a key what it had of it.
            most = (3.0 / self.sizes[-1]) ** 0.5
            gates = {"query": (-most, most), "key": (-most, most)}
            gates |= {"decay": (-0.5, 0.0), "beta": (0.0, 1.0)}
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
        if self.family == "delta":
            return gated_delta_steps(inputs)
        name = "cumsum" if self.family == "cumsum" else "selective_scan"
        wide = {key: array.astype(np.float64) for key, array in inputs.items()}
        found: Arrays = LIBRARY[name].expected(wide)
        return found


def check_cases(tiny: bool) -> list[Case]:
    """Cases in which every plan of the ladder is compared with float64."""
    if tiny:
        return [
            Case("affine", (2, 72)),
            Case("affine", (2, 72), "bfloat16"),
            Case("selective", (1, 8, 24, 16)),
            Case("selective", (1, 8, 24, 16), "bfloat16"),
        ]
    return [
        Case("affine", (8 * 1536, 1024)),
        Case("affine", (8 * 1536, 1023)),
        Case("affine", (8 * 1536, 1024), "bfloat16"),
        Case("cumsum", (64, 32768)),
        Case("cumsum", (1, 1 << 20)),
        Case("selective", (2, 2048, 512, 16)),
        Case("selective", (2, 2048, 512, 16), "bfloat16"),
        Case("rwkv6", (32, 512, 64)),
        Case("delta", (32, 500, 128)),
    ]


def timed_cases() -> tuple[list[Case], list[Case]]:
    """Cases of the targets, of which the first of a family has the ladder; and all others."""
    lengths = (16, 9, 14, 7, 10, 8, 11, 13, 15)
    rows = 8 * 1536
    sums = [(1, 1 << k) for k in (24, 20, 16, 26, 22, 18, 17, 19, 21, 23, 25, 27)]
    times = (2048, 512, 8192, 65536, 1024, 4096, 16384, 32768)
    scans = [(b, d, length, 16) for length in times for b in (8, 1) for d in _WIDE]
    few = [s for s in scans if s[0] * s[1] * s[2] <= _MOST]
    first = [
        Case("affine", (rows, 4096)),
        Case("cumsum", (1, 1 << 28)),
        *(Case("selective", s) for s in few[:4]),
        Case("rwkv6", (32, 1024, 64)),
        Case("delta", (32, 2048, 128)),
        # What is compared with a CUDA sequential kernel.
        Case("affine", (1536, 1024)),
        Case("affine", (rows, 4096), "bfloat16"),
        *(Case("cumsum", s) for s in ((64, 32768), (2048, 4096))),
        *(Case("selective", (b, 2048, 2048, 16), "bfloat16") for b in (8, 1)),
    ]
    rest = [
        *(Case("affine", (rows, 1 << k), dtype) for k in lengths for dtype in _BOTH),
        # Of no power of two, and of no whole vectors.
        *(Case("affine", (rows, n)) for n in (4095, 5000)),
        *(Case("cumsum", s) for s in sums),
        *(Case("selective", s) for s in few[4:]),
        *(Case("selective", s, "bfloat16") for s in few),
        *(Case("rwkv6", (32, t, 64)) for t in (128, 8192, 512, 2048, 256, 4096)),
        *(Case("delta", (h, t, 128)) for t in (8192, 512, 64, 1) for h in (32, 128)),
    ]
    return first, [case for case in rest if str(case) not in map(str, first)]


def dry_cases() -> tuple[list[Case], list[Case]]:
    """The same in a moment."""
    return [Case("affine", (2, 64)), Case("selective", (1, 8, 32, 16))], [Case("cumsum", (1, 70))]


def peer_cases() -> list[Case]:
    """Cases in which peers in CUDA are compared with float64: all their sizes of blocks."""
    return [
        Case("affine", (16, 256)),
        Case("affine", (16, 8192)),
        Case("affine", (16, 256), "bfloat16"),
        Case("cumsum", (1, 5000)),
        *(Case("selective", (2, 8, length, 16)) for length in (512, 1024, 4096)),
        Case("selective", (2, 8, 4096, 16), "bfloat16"),
        Case("rwkv6", (2, 64, 64)),
        Case("delta", (2, 200, 128)),
    ]


_BOTH = ("float32", "bfloat16")
#: Elements of an array of a selective scan, of which five are held at once.
_MOST = 1 << 30
_WIDE = (2048, 4096)

_TILES = "cuda/serial_tiles(threads_per_block=128, items_per_thread="
_WALK = "cuda/lanes(threads_per_block=128, items_per_thread=4, vector_loads=True, threads_per_lane="
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
        "padded exchange": _TILES + "8, block_tree=warp, vector_loads=True, block_load=transposed)",
        "double buffered": _TILES
        + "8, block_tree=warp, vector_loads=True, block_load=transposed, stages=2)",
        "single pass": "cuda/single_pass(threads_per_block=256, items_per_thread=16, "
        "block_tree=warp, vector_loads=True)",
    },
    "selective": {
        "thread per lane": "cuda/lanes(threads_per_block=128)",
        "tree": _TILES + "4)",
        "tree, shuffles": _TILES + "4, block_tree=warp, vector_loads=True)",
        **{f"{s} threads per lane": f"{_WALK}{s})" for s in (2, 4, 8, 16)},
        "4, of 16 exps 4 by polynomial": f"{_WALK}4, exp_share=4)",
        "4, lanes shared": f"{_WALK}4, block_load=transposed)",
        "4, double buffered": f"{_WALK}4, block_load=transposed, stages=2)",
        "4, in 8 chunks": f"{_WALK}4, block_load=transposed, stages=2, chunks=8)",
    },
}
LADDERS["cumsum"] = LADDERS["affine"]
LADDERS["rwkv6"] = {
    k: v
    for k, v in LADDERS["selective"].items()
    if k.startswith(("thread", "8 threads", "16 threads"))
}
_BLOCKS = "cuda/delta_blocks(steps="
LADDERS["delta"] = {
    "8 steps, multiply-adds": _BLOCKS + "8)",
    "8 steps, tensor cores": _BLOCKS + "8, threads_per_block=64, products=tf32x3)",
    "16 steps, tensor cores": _BLOCKS + "16, threads_per_block=64, products=tf32x3)",
    "16 steps, tensor cores, 8 chunks": _BLOCKS
    + "16, threads_per_block=64, chunks=8, products=tf32x3)",
}


def ladder(case: Case) -> dict[str, ScanPlan]:
    """Plans of a case by name: those whose decisions ``ScanPlan`` has."""
    found = {}
    for name, text in LADDERS[case.family].items():
        if case.dtype != "float32" and "block_load=transposed" in text:
            # Eight halves are one vector: there is nothing to transpose.
            text = text.replace("items_per_thread=8", "items_per_thread=16")
        try:
            found[name] = ScanPlan.parse(text)
        except PlanError:
            continue
    return found
