"""What ``bench.machine_code`` compiles: default plans for shapes of docs/cuda/model.md; peers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.target import Target

from bench.gpu_loops import affine, rwkv6, selective_halves
from bench.tuned_torch import torch_loop
from tvm_scan import ScanPlan, default_plan, extract, library
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.common.state_split import NoSplit, split_of
from tvm_scan.schedules.gpu.shared.walk_layout import walk_steps
from tvm_scan.schedules.gpu.walk.passes import steps_of_passes

__all__ = ["CASES", "LATER", "TARGET", "Case", "Part", "Peer", "default_of", "parts_of"]

TARGET = Target(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
    },
    host={"kind": "llvm"},
)
#: The first one with instructions on pairs of float32.
LATER = Target({**dict(TARGET.export()), "arch": "sm_100"})


@dataclass(frozen=True)
class Part:
    """A kernel that goes over all elements.

    Attributes
    ----------
    pattern : str
        Of its name.
    work : tuple of float
        Elements of a thread in a pass of the region, of its heaviest loop, and so on. An element
        is a step of a lane, or of one of its states. Empty: as many as a pass stores.
    whole : bool
        Whether the region is the kernel; else it is its outermost loop.
    """

    pattern: str
    work: tuple[float, ...]
    whole: bool = False

    def fits(self, name: str) -> bool:
        """Return whether a kernel has such a name."""
        return re.search(self.pattern, name) is not None


@dataclass(frozen=True)
class Peer:
    """Published kernels for the same work.

    Attributes
    ----------
    name : str
        Whose.
    library : str
        What they are compiled from: a key of ``machine_code_peers.LIBRARIES``.
    parts : tuple of Part
        The kernels that this shape takes.
    threads : int
        Of a block.
    bytes : float
        Moved to and from memory for each element.
    launches : int
        Kernels.
    """

    name: str
    library: str
    parts: tuple[Part, ...]
    threads: int
    bytes: float
    launches: int = 1


@dataclass(frozen=True)
class Case:
    """One loop at one shape.

    Attributes
    ----------
    make : callable
        The loop.
    elements : int
        Steps of all lanes, times the states of each.
    bytes : float
        That must be read or written for each element, every array once.
    stored : float
        Of these, written.
    peers : tuple of Peer
        Published kernels for it.
    beside : str, optional
        Another plan of ours, which is no default.
    """

    make: Callable[[], tirx.PrimFunc]
    elements: int
    bytes: float
    stored: float
    peers: tuple[Peer, ...] = ()
    beside: str | None = None


def parts_of(plan: ScanPlan, recurrence: Recurrence) -> tuple[Part, ...]:
    """The kernels of a plan that go over all elements, and what their loops do.

    Parameters
    ----------
    plan : ScanPlan
        A walk whose threads share lanes, not in chunks; or tiles.
    recurrence : Recurrence
        What it is for.

    Raises
    ------
    ValueError
        For another plan.
    """
    fields: Any = plan
    if plan.algorithm == "serial_tiles":
        # nvcc may write out several tiles in one pass of the loop.
        return (Part(r"_kernel$", ()),)
    each = (float(fields.items_per_thread),)
    if plan.algorithm == "single_pass":
        return (Part(r"_kernel_1$", each, whole=True),)
    if plan.algorithm == "three_phase":
        return (Part(r"_kernel$", each, whole=True), Part(r"_kernel_2$", each, whole=True))
    split = split_of(recurrence)
    if plan.algorithm == "lanes" and not fields.chunks and not isinstance(split, NoSplit):
        states = split.states / fields.threads_per_lane
        outer = [walk_steps(fields)] if fields.block_load == "transposed" else []
        steps = [*outer, *steps_of_passes(fields, int(states))]
        inner = [n for n, before in zip(steps[1:], steps, strict=False) if n < before]
        return (Part(r"_kernel$", tuple(n * states for n in (steps[0], *inner))),)
    raise ValueError(f"bench.machine_code: expected a walk of shared lanes or tiles, found {plan}")


def default_of(case: Case, target: Target = TARGET) -> tuple[ScanPlan, Recurrence]:
    """The default plan of a case, on an H200 if not said, and its recurrence."""
    recurrence = extract(case.make())
    return default_plan(target, recurrence), recurrence


#: Reads one long row twice; see docs/cuda/plans.md.
_THREE_PHASE = (
    "cuda/three_phase(threads_per_block=256, items_per_thread=16, block_tree=warp, "
    "vector_loads=True)"
)
_STEPS = 16
_OUTER = {
    "dtype": "float32",
    "reverse": False,
    "states": 64,
    "emit": "inclusive",
    "has_reset": False,
}
#: Of a head: lanes times states, steps of a chunk, and heads, of the SSD kernels' shape.
_CELLS, _CHUNK, _HEADS = 64 * 64, 256, 32
#: Elements of a thread in each of its kernels, whole and in a pass of its loop, by the tiles that
#: ``machine_code_kernels`` says.
_SSD_PARTS = (
    # 16 heads' steps of a chunk, by 128 threads.
    Part("_chunk_cumsum_fwd", (_CHUNK * 16 * _CELLS / 128,), whole=True),
    # The state that a chunk leaves behind, by 64 threads, 32 steps in a pass.
    Part("_chunk_state_fwd", (_CHUNK * _CELLS / 64, 32 * _CELLS / 64), whole=True),
    # 512 cells by 128 threads, four chunks in a pass as it is unrolled.
    Part("_state_passing_fwd", (4 * _CHUNK * 512 / 128,)),
    # Products of C and B that all heads share: of 16 tiles of a chunk the lower 10, in two passes.
    Part(
        "_bmm_chunk_fwd",
        (_CHUNK * _HEADS * _CELLS / 10 / 64, _CHUNK * _HEADS * _CELLS / 10 / 128),
        whole=True,
    ),
    # 64 steps of a head, by 64 threads; 5 passes on average, 2 for the first 64 of a chunk.
    Part("_chunk_scan_fwd", (64 * _CELLS / 64, 64 * _CELLS / 64 / 5), whole=True),
)
#: x twice and y, states written, read, written and read, and products of C and B.
_SSD_BYTES = 4 * (3 / 64 + 4 / _CHUNK + 2 * _CHUNK / _HEADS / _CELLS)


def _selective(batch: int) -> Case:
    """A selective scan of float32, 2048 channels and steps, and 16 states."""
    peer = Peer(
        "mamba-ssm `selective_scan_fwd_kernel`",
        "mamba",
        (Part(r"selective_scan_fwd_kernel.*Li128ELi16ELi1ELb1ELb1ELb1ELb1Eff", (256, _STEPS)),),
        128,
        # It writes y before the gate too, and the state at the end of the chunk.
        (5 + 2 * 16 / 2048) * 4 / 16 + 8 / 2048,
    )
    return Case(
        lambda: library.selective_scan(batch, 2048, 2048, 16),
        batch * 2048 * 2048 * 16,
        # delta, u, z and out; B and C are shared by all channels.
        (4 + 2 * 16 / 2048) * 4 / 16,
        4 / 16,
        (peer,),
    )


_AFFINE_LOOK_BACK = Peer(
    "CUB `DeviceScan`, look-back",
    "peers",
    (Part(r"DeviceScanKernel.*Combine", (), whole=True),),
    128,
    12,
    2,
)
CASES: dict[str, Case] = {
    "selective 8 x 2048 x 2048 x 16": _selective(8),
    "selective 64 x 2048 x 2048 x 16": _selective(64),
    "selective 8 x 2048 x 2048 x 16, bfloat16": Case(
        lambda: selective_halves(8, 2048, 2048, 16, "bfloat16"),
        8 * 2048 * 2048 * 16,
        (4 + 2 * 16 / 2048) * 2 / 16,
        2 / 16,
        (
            Peer(
                "mamba-ssm `selective_scan_fwd_kernel`",
                "mamba",
                (
                    Part(
                        r"selective_scan_fwd_kernel.*Li128ELi16ELi1ELb1ELb1ELb1ELb1E13__nv_bfloat16f",
                        (_STEPS * 16, _STEPS),
                    ),
                ),
                128,
                (5 + 2 * 16 / 2048) * 2 / 16 + 8 / 2048,
            ),
        ),
    ),
    "affine 12288 x 65536": Case(
        lambda: affine(12288, 65536, "float32"),
        12288 * 65536,
        12,
        4,
        (
            Peer(
                "accelerated-scan `warp`",
                "accelerated",
                (Part(r"4scanI12AlignedTupleIfLi4EELi32ELi32ELi16ELb0E", (4,)),),
                1024,
                12,
            ),
            Peer("CUB `BlockScan`, rows", "block", (Part("block_affine", (16,)),), 128, 12),
            _AFFINE_LOOK_BACK,
            Peer("Triton `tl.associative_scan`", "triton", (Part(r"_kernel", (16,)),), 128, 12),
            Peer(
                "fla `fused_recurrent_hgrn`, time first",
                "fla hgrn",
                (Part(r"fused_recurrent_hgrn_fwd", ()),),
                32,
                12,
            ),
        ),
    ),
    "cumsum 2048 x 4096": Case(
        lambda: library.cumsum(2048, 4096),
        2048 * 4096,
        8,
        4,
        (
            Peer("CUB `BlockScan`, rows", "block", (Part("block_sum", (16,)),), 128, 8),
            Peer(
                "fla `chunk_global_cumsum`",
                "fla cumsum",
                (Part(r"chunk_global_cumsum_scalar", (4,)),),
                64,
                8,
            ),
        ),
    ),
    "cumsum 1 x 2^28": Case(
        lambda: library.cumsum(1, 1 << 28),
        1 << 28,
        8,
        4,
        (
            Peer(
                "CUB `DeviceScan`, look-back",
                "peers",
                (Part(r"DeviceScanKernel.*PKfPf", (), whole=True),),
                128,
                8,
                2,
            ),
        ),
        _THREE_PHASE,
    ),
    "affine 1 x 2^27": Case(
        lambda: affine(1, 1 << 27, "float32"),
        1 << 27,
        12,
        4,
        (_AFFINE_LOOK_BACK,),
        _THREE_PHASE,
    ),
    "rwkv6 32 x 1024 x 64 x 64": Case(
        lambda: rwkv6(32, 1024, 64),
        32 * 64 * 1024 * 64,
        5 * 4 / 64,
        4 / 64,
        (
            Peer(
                "fla `fused_recurrent_rwkv6`",
                "fla rwkv6",
                # A warp has 32 keys and 32 columns.
                (Part(r"fused_recurrent_rwkv6_fwd", (32,)),),
                32,
                # Two halves of the keys write their sums, which another kernel adds up.
                (4 + 2 + 3) * 4 / 64,
                2,
            ),
        ),
    ),
    "ssd 8 x 2048 x 32 x 64 x 64": Case(
        lambda: torch_loop("outer_products", (8, 32, 64, 2048), {**_OUTER, "gate": "head"}),
        8 * 2048 * 32 * 64 * 64,
        # x and y; the gate, a and c are shared by the lanes of a head, here one for each head.
        (2 / 64 + 2 / 64) * 4,
        4 / 64,
        (
            Peer(
                "fla `fused_recurrent_simple_gla`",
                "fla simple_gla",
                (Part(r"fused_recurrent_fwd", (8,)),),
                128,
                (3 + 2 + 3) * 4 / 64,
                2,
            ),
            Peer("mamba-ssm SSD, five kernels", "mamba_ssm ssd", _SSD_PARTS, 64, _SSD_BYTES, 5),
        ),
    ),
}
