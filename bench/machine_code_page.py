"""The page of ``bench.machine_code``."""

from __future__ import annotations

from typing import Any

from bench.origin import origin
from tvm_scan.schedules.machine.gpu_chip import H200

__all__ = ["EQUAL_STEPS", "page"]

#: Whose the rows of the other way through a loop are.
EQUAL_STEPS = "ours, A in equal steps"

#: Pipe of ``bench.sass`` -> its column.
_PIPES = {
    "fma": "FMA",
    "alu": "ALU",
    "matrix": "tensor cores",
    "special": "special",
    "shared": "shared",
    "global": "global",
    "shuffle": "shuffle",
    "uniform": "uniform",
    "control": "control",
}
#: Case -> why the figures are as they are.
_WHY = {
    "selective 8 x 2048 x 2048 x 16": (
        "Five instructions are the least where exponents are any: a product, its power of two, B "
        "times what all states share, and two multiply-adds. Where those of a thread lie in equal "
        "steps, as Mamba's first A, the first two are one product, but for two of each in eight "
        "states. mamba-ssm's "
        "scans the tile of each state by a tree, with two barriers, and loads B and C again for "
        "every channel; its shared memory is given at the launch and not in its machine code. With "
        "any exponents the special functions bind ours, whose states of a lane, and two tiles of B "
        "and C, are the registers, the shared memory and with them the occupancy. One thread for a "
        "lane takes fewer instructions (the next table), but at this batch leaves one warp of 512 "
        "to each of 528 schedulers, which then issues at the distances of a warp alone: "
        "{alone:.0f} us, against {together:.0f} of two warps that fill each other's.\n\n"
        "*What a step of a lane takes, of 16 states and two threads.* The states: 80 instructions "
        "with any exponents, 69 with equal steps, where its owner sends the step size as its "
        "product with the exponents' step. B and C: 8 loads of 16 bytes. Softplus, gate and the "
        "rest that is made once: 25, of which 9 are the polynomial of the softplus; one degree "
        "less would be off by 4.7 ulp. Its own inputs and output: 2. What the two threads "
        "exchange, in shared memory: 1.5 loads, a store, a sum, and half a barrier of the warp (by "
        "shuffles it is 8). Addresses, guards and loops: 3.6. One of these is that each of the 16 "
        "copies of a tile has an address of its own, because an asynchronous copy adds 2 KB at "
        "most to one and rows are further apart. The rest is for a tile of 32 steps, whose four "
        "groups are written out: a loop of four times the code, which asks once which exponents "
        "it has. What a thread makes of its number, for addresses in memory and in the one array "
        "of shared memory, is held in registers.\n\n"
        "The first four kinds alone, without any exchange or address, are 7.2 for an element with "
        "any exponents: with functions of these errors seven cannot be reached there but by a "
        "thread that has two lanes, of which there are too few. The special functions bind it: "
        "`exp_share=1` is predicted to take 165 us, with 8.4 instructions, which is closer to the "
        "default than [plans are told apart](model.md#polynomials-for-exponentials). With equal "
        "steps the next bound is the load and store unit: [131 us](model.md#the-default-plan) by "
        "the lines that its accesses touch, against 126 of instructions and 125 of memory. Of 464 "
        "lines for a tile of a warp 128 are B and C, 144 delta, u and z on their way in and out "
        "of shared memory, 64 the output, whose 16 rows a store touches all, and 128 what threads "
        "exchange. If each of two left the other's sums alone, and kept its own, 32 less: 122 us "
        "by lines, but 7.02 instructions, which choose what is kept, and 25 registers more (tried "
        "by hand in the kernel's text). The ratio of a step's powers once for both threads would "
        "take a line more for every step."
    ),
    "selective 64 x 2048 x 2048 x 16": (
        "With more channels than the chip has threads to spare, a thread has all states of its "
        "own, and exchanges nothing. These are its registers, which leave room for few threads; "
        "the shared memory is two tiles of B and C. Memory binds where A lies in equal steps, else "
        "special functions."
    ),
    "selective 8 x 2048 x 2048 x 16, bfloat16": (
        "The block converts B and C once for all its channels, which is a barrier more; the shared "
        "memory is their tiles, in float32 and in two buffers of halves."
    ),
    "affine 12288 x 65536": (
        "Memory binds all but one. Ours and CUB's rows take 16 steps of a thread through shared "
        "memory, and of every step of a thread a part of the tree: these are the shuffles, the "
        "predicates (ALU) and the addresses (uniform) that fla's, which has no tree, has not, as "
        "it has no barrier. Eight steps of a thread without shared memory take 15 instructions, "
        "44 registers and less room, and 3 % more time on an H100, where a block asks for runs of "
        "4 KB instead of 16. Registers are the inputs, held from the reduction to the replay; "
        "fla's occupancy is that of as many threads as rows. "
        "accelerated-scan is compiled without multiply-adds and "
        "scans all four elements of a thread at every level. The functor by which CUB's "
        "look-back keeps rows apart (`bench/gpu_peers.cu`) has a remainder of 64 bits, and reads "
        "cells one by one. fla's walks time by a thread for each row, with time as the first axis: "
        "no exchange, but as many threads as rows; its gate is the exponential of its input."
    ),
    "cumsum 2048 x 4096": (
        "Memory binds all. The shared memory is a tile of 16 KB, its results in the place of its "
        "inputs: on an H100 it takes 24.7 us, and 31 with 8 steps of a thread and none."
    ),
    "cumsum 1 x 2^28": (
        "The default reads the row once; of its bytes a twentieth of one is what "
        "blocks hand to one another. That it ends is [proven](plans.md#the-single-pass). On an "
        "H100 CUB's takes [1.05 times as long](measurements.md#cumsum): what decides it is not "
        "counted here, the bytes of blocks that wait for words of others, twice as many as CUB's. "
        "The shared memory is a tile, whose steps no thread holds in registers. `three_phase` has "
        "a kernel that "
        "reduces and one that replays, which is why its sums and addresses count twice, and its "
        "prediction has the kernel of one block between them."
    ),
    "affine 1 x 2^27": (
        "As of the sum, the default reads the row once, and `three_phase` twice. CUB's functor "
        "keeps rows apart, of which there is one (`bench/gpu_peers.cu`), and reads cells one by "
        "one."
    ),
    "rwkv6 32 x 1024 x 64 x 64": (
        "fla's recurrent kernel divides a head among four programs, two of which have the same "
        "columns: another kernel adds up their sums, which is not counted, where ours exchanges "
        "sums in this one: the FMA pipe's sums and the shuffles. The shared memory is what the "
        "columns of a head share, in two buffers. Its gate is an exponential."
    ),
    "ssd 8 x 2048 x 32 x 64 x 64": (
        "mamba-ssm's works in chunks of 256 steps by products of matrices on tensor cores, another "
        "algorithm, in which a step of a state is a small part of an instruction; the bounds have "
        "none for tensor cores. Ours and fla's recurrent kernel take step after step; fla's loads "
        "each as it comes, with few registers and no tiles, and three times the instructions."
    ),
}
_HEAD = """# CUDA: machine code

What nvcc makes of our default kernels and of published ones for the same work, compiled for
sm_90 by the same tools (nvcc {nvcc}). Nothing here is [measured](measurements.md).
Instructions are counted in the machine code by `python -m bench.machine_code` ({origin});
the bounds are those of [the model](model.md) for an H200, with what was counted in the place of
estimates.

*How it counts.* `bench/sass.py` reads nvdisasm's output and finds the loops by dominators. Of
the ways through a pass it takes the one that moves most bytes, then has most special functions
(with A in equal steps, fewest), then the fewest instructions: that of a whole tile. What a branch
skips and nothing replaces counts: some thread of a warp executes it. What a pass of a loop does
follows from the plan (ours), the template arguments (peers'), the tiles that a kernel of Triton is
compiled for, or what it stores. A branch that a warp takes as a whole, by a vote, is taken where it
skips work: no value is NaN. Instructions are a thread's, for an element: a step of a lane,
and of one of its states where it has states. Loops inside that do not go over elements (a look-back
that waits) count once. The cycles of a warp alone are the distances that ptxas puts between
instructions, without waits for memory: what a warp takes that has a scheduler for itself.
Accesses are the instructions of the load and store unit: to shared and global memory, and shuffles.
A multiprocessor takes one of a warp for each clock at best: each is a line of 128 bytes at least,
and what lines they touch is not to be read from machine code ([the model](model.md) counts those
of ours).
Occupancy is by registers and static shared memory. A figure of ours that is worse than the best
peer's is **bold**.
"""
_PAIRS = """## sm_100: two numbers at once

From sm_100 on `fma.rn.f32x2`, `mul` and `add` work on two float32 at once, each rounded as by
itself (ptxas: FFMA2, FMUL2, FADD2). Our walks take them for two steps that follow one another,
where memory holds their inputs along time, and else for two states of a step
(`schedules/machine/pairs.py`). What waits for the step before, as the carry, and sums over the
states of a step keep their order, and are made one by one. The plans are the defaults for sm_100,
predicted for a B200 with pairs. The instructions that are saved leave room for some exponentials by
polynomials (`exp_share`), whose products and sums are pairs, too. Of a plan in chunks of time the
walk over one is counted and predicted.
"""
_TAIL = """## What is not there

fla's kernels in chunks (`chunk_gla`, `chunk_rwkv6`) are made like those of mamba-ssm's SSD. Kernels
in Triton are tuned on the device; the settings here are among those that they try
(`bench/machine_code_kernels.py`).
"""


def page(found: dict[str, Any]) -> str:
    """The page of a result.

    Parameters
    ----------
    found : dict
        What ``bench.machine_code`` writes.
    """
    lines = [_HEAD.format(nvcc=found["nvcc"], origin=origin(found["machine"]))]
    for name, rows in found["cases"].items():
        lines += [f"## {name}", "", *_table(rows), ""]
        lines += [f"Missing: {row['who']}: {row['missing']}." for row in rows if "missing" in row]
        lines += [_WHY[name].format(**_alone(found["cases"])), ""]
    return "\n".join([*lines, *_pairs(found["pairs"]), _TAIL])


def _alone(cases: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Microseconds of the smaller batch by one thread a lane and one warp a scheduler, and by two.

    Of exponents in equal steps, 2048 steps of 16 states.
    """
    one, two = (cases.get(f"selective {b} x 2048 x 2048 x 16", [{}, {}])[1] for b in (64, 8))
    each = 2048 * 16 / (H200.clock * 1e-6)
    return {
        "alone": one.get("cycles", 0.0) * each,
        "together": max(two.get("instructions", 0.0), two.get("cycles", 0.0) / 2) * each,
    }


def _pairs(cases: dict[str, dict[str, list[dict[str, Any]]]]) -> list[str]:
    """The section on sm_100."""
    lines = [
        _PAIRS,
        "| instructions per element | separate | in pairs | of these on pairs "
        "| registers, separate | in pairs | predicted on a B200, us | plan |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for name, ways in cases.items():
        for one, two in zip(ways["separate"], ways["in pairs"], strict=True):
            which = name + one["who"].removeprefix("ours")
            cells = [f"{one['instructions']:.2f}", f"{two['instructions']:.2f}"]
            cells += [f"{two['packed']:.2f}", str(one["registers"]), str(two["registers"])]
            cells += [f"{two['predicted']['seconds']:.1f}", f"`{two['plan']}`"]
            lines.append(f"| {which} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _table(rows: list[dict[str, Any]]) -> list[str]:
    there = [row for row in rows if "missing" not in row]
    ways = [row for row in there if row["who"].startswith("ours")]
    columns = ["per element", *(row["who"] for row in there)]
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * len(there)]

    def add(name: str, value: Any, form: str, *, more_is_worse: bool = True) -> None:
        values = [value(row) for row in there]
        cells, others = [form.format(v) for v in values], values[len(ways) :]
        best = min(others, default=None) if more_is_worse else max(others, default=None)
        for at in range(len(ways)) if best is not None else ():
            worse = values[at] > best if more_is_worse else values[at] < best
            if worse and cells[at] != form.format(best):
                cells[at] = f"**{cells[at]}**"
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    add("instructions", lambda row: row["instructions"], "{:.2f}")
    for pipe, title in _PIPES.items():
        if any(pipe in row["pipes"] for row in there):
            add(f"- {title}", lambda row, pipe=pipe: row["pipes"].get(pipe, 0.0), "{:.2f}")
    add("accesses", lambda row: row["accesses"], "{:.2f}")
    add("cycles of a warp alone", lambda row: row["cycles"], "{:.2f}")
    add("barriers of a thread", lambda row: row["barriers"], "{:.3f}")
    add("bytes of memory", lambda row: row["bytes"], "{:.2f}")
    add("registers", lambda row: row["registers"], "{}")
    add("shared memory, bytes of a block", lambda row: row["shared"], "{}")
    add("occupancy", lambda row: row["occupancy"], "{:.2f}", more_is_worse=False)
    for bound in ("memory", "exp", "issue", "accesses", "seconds"):
        title = "predicted" if bound == "seconds" else f"bound: {bound}"
        add(f"{title}, us", lambda row, bound=bound: row["predicted"][bound], "{:.1f}")
    plans = dict.fromkeys(f"`{row['plan']}`" for row in ways)
    return [*lines, "", f"Ours: {', '.join(plans)}."]
