"""Kernels in Triton that ``bench.machine_code`` compiles.

Of a published kernel that is tuned on the device the settings here are among those that it tries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["KERNELS", "TritonKernel"]


@dataclass(frozen=True)
class TritonKernel:
    """A kernel, and what it is compiled for.

    Attributes
    ----------
    module, name : str
        Where it stands, and its name there.
    types : mapping
        Of arguments that are passed: name -> type. Those of pointers, and of integers except
        those named ``T`` (which fla says not to), are multiples of 16, as Triton assumes of
        arguments that are.
    constants : mapping
        The other arguments: name -> value.
    warps, stages : int
        Of a block; of a pipelined loop.
    """

    module: str
    name: str
    types: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3


def _pointers(names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), "*fp32")


def _integers(names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), "i32")


_NO_STATES = {
    "h0": None,
    "ht": None,
    "cu_seqlens": None,
    "USE_INITIAL_STATE": False,
    "STORE_FINAL_STATE": False,
    "IS_VARLEN": False,
}
_OF_64 = {"K": 64, "V": 64, "BK": 32, "BV": 32, "REVERSE": False}
_SSD = "mamba_ssm.ops.triton.ssd_"
_TILE = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32}
#: Strides of an array whose last axis is contiguous, which Triton takes as a constant.
_ONE = 1


def _strides(**names: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Strides of arrays with a contiguous last axis: those passed, and those that are 1."""
    passed, constant = {}, {}
    for array, axes in names.items():
        *outer, last = axes.split()
        passed |= {f"stride_{array}_{axis}": "i32" for axis in outer}
        constant[f"stride_{array}_{last}"] = _ONE
    return passed, constant


def _ssd(
    module: str,
    name: str,
    types: Mapping[str, str],
    strides: tuple[dict[str, str], dict[str, Any]],
    constants: Mapping[str, Any],
    warps: int = 2,
    stages: int = 4,
) -> TritonKernel:
    passed, ones = strides
    return TritonKernel(
        _SSD + module, name, {**types, **passed}, {**ones, **constants}, warps, stages
    )


#: Library -> its kernels.
KERNELS: dict[str, tuple[TritonKernel, ...]] = {
    "triton": (
        TritonKernel(
            "bench.gpu_triton",
            "_kernel",
            {**_pointers("a_ptr x_ptr h_ptr"), "length": "i32"},
            {"BLOCK": 2048},
        ),
    ),
    "fla rwkv6": (
        TritonKernel(
            "fla.ops.rwkv6.fused_recurrent",
            "fused_recurrent_rwkv6_fwd_kernel",
            {**_pointers("q k v w u o"), "scale": "fp32", "T": "i32"},
            {**_NO_STATES, **_OF_64, "B": 1, "H": 32},
            warps=1,
        ),
    ),
    "fla simple_gla": (
        TritonKernel(
            "fla.ops.common.fused_recurrent",
            "fused_recurrent_fwd_kernel",
            {**_pointers("q k v g o"), "scale": "fp32", "B": "i32", "T": "i32"},
            {
                **_NO_STATES,
                **_OF_64,
                **dict.fromkeys(("g_gamma", "gk", "gv")),
                "H": 32,
                "USE_G": True,
                **dict.fromkeys(("USE_G_GAMMA", "USE_GK", "USE_GV", "STATE_V_FIRST"), False),
            },
        ),
    ),
    "fla hgrn": (
        TritonKernel(
            "fla.ops.hgrn.fused_recurrent",
            "fused_recurrent_hgrn_fwd_kernel",
            {**_pointers("x g o"), "T": "i32"},
            {**_NO_STATES, "D": 1536, "BD": 32},
            warps=1,
        ),
    ),
    "fla cumsum": (
        TritonKernel(
            "fla.ops.utils.cumsum",
            "chunk_global_cumsum_scalar_kernel",
            {**_pointers("s o"), "T": "i32"},
            {
                **dict.fromkeys(("scale", "cu_seqlens")),
                **dict.fromkeys(("REVERSE", "HAS_SCALE", "IS_VARLEN"), False),
                "B": 2048,
                "H": 1,
                "BT": 256,
            },
            warps=2,
        ),
    ),
    "mamba_ssm ssd": (
        _ssd(
            "chunk_state",
            "_chunk_cumsum_fwd_kernel",
            {
                **_pointers("dt_ptr A_ptr dt_out_ptr dA_cumsum_ptr"),
                **_integers("batch seqlen nheads chunk_size"),
                **dict.fromkeys(("dt_min", "dt_max"), "fp32"),
            },
            _strides(
                dt="batch seqlen head",
                A="head",
                dt_out="batch chunk head csize",
                dA_cs="batch chunk head csize",
            ),
            {
                **dict.fromkeys(("dt_bias_ptr", "stride_dt_bias_head"), None),
                "DT_SOFTPLUS": False,
                "HAS_DT_BIAS": False,
                "BLOCK_SIZE_H": 16,
                "BLOCK_SIZE_CHUNK": 256,
            },
            warps=4,
        ),
        _ssd(
            "chunk_state",
            "_chunk_state_fwd_kernel",
            {
                **_pointers("x_ptr b_ptr states_ptr dt_ptr dA_cumsum_ptr"),
                **_integers("hdim dstate chunk_size batch seqlen nheads_ngroups_ratio"),
            },
            _strides(
                x="batch seqlen head hdim",
                b="batch seqlen head dstate",
                states="batch chunk head hdim dstate",
                dt="batch chunk head csize",
                dA_cs="batch chunk head csize",
            ),
            {
                **dict.fromkeys(("seq_idx_ptr", "stride_seq_idx_batch", "stride_seq_idx_seqlen")),
                "HAS_SEQ_IDX": False,
                **_TILE,
            },
        ),
        _ssd(
            "state_passing",
            "_state_passing_fwd_kernel",
            {
                **_pointers("states_ptr out_ptr final_states_ptr dA_cs_ptr"),
                **_integers("dim nchunks seqlen chunk_size"),
                "stride_dA_cs_batch": "i32",
                "stride_dA_cs_chunk": "i32",
                "stride_dA_cs_head": "i32",
            },
            _strides(
                states="batch chunk head dim",
                out="batch chunk head dim",
                final_states="batch head dim",
            ),
            {
                **dict.fromkeys(
                    (
                        "initstates_ptr",
                        "seq_idx_ptr",
                        "stride_initstates_batch",
                        "stride_initstates_head",
                        "stride_initstates_dim",
                        "stride_seq_idx_batch",
                        "stride_seq_idx_seqlen",
                    )
                ),
                "HAS_INITSTATES": False,
                "HAS_SEQ_IDX": False,
                "BLOCK_SIZE": 512,
            },
            warps=4,
        ),
        _ssd(
            "bmm",
            "_bmm_chunk_fwd_kernel",
            {
                **_pointers("a_ptr b_ptr out_ptr"),
                **_integers("seqlen chunk_size K stride_a_batch stride_a_seqlen stride_a_head"),
                **_integers("stride_b_batch stride_b_seqlen stride_b_head"),
                **_integers("stride_out_batch stride_out_chunk stride_out_head stride_outm"),
            },
            ({}, {"stride_ak": _ONE, "stride_bk": _ONE, "stride_outn": _ONE}),
            {
                **dict.fromkeys(("seq_idx_ptr", "stride_seq_idx_batch", "stride_seq_idx_seqlen")),
                "ngroups": _ONE,
                "IS_CAUSAL": True,
                "dot_dtype": "float32",
                "HAS_SEQ_IDX": False,
                **_TILE,
            },
        ),
        _ssd(
            "chunk_scan",
            "_chunk_scan_fwd_kernel",
            {
                **_pointers("cb_ptr x_ptr out_ptr dt_ptr dA_cumsum_ptr C_ptr prev_states_ptr"),
                **_integers("chunk_size hdim dstate batch seqlen nheads_ngroups_ratio"),
            },
            _strides(
                cb="batch chunk head csize_m csize_k",
                x="batch seqlen head hdim",
                out="batch seqlen head hdim",
                dt="batch chunk head csize",
                dA_cs="batch chunk head csize",
                C="batch seqlen head dstate",
                states="batch chunk head hdim dstate",
            ),
            {
                **dict.fromkeys(
                    (
                        "z_ptr",
                        "out_x_ptr",
                        "seq_idx_ptr",
                        "D_ptr",
                        "stride_z_batch",
                        "stride_z_seqlen",
                        "stride_z_head",
                        "stride_z_hdim",
                        "stride_seq_idx_batch",
                        "stride_seq_idx_seqlen",
                        "stride_D_head",
                    )
                ),
                **dict.fromkeys(("HAS_D", "D_HAS_HDIM", "HAS_Z", "HAS_SEQ_IDX"), False),
                "IS_CAUSAL": True,
                **_TILE,
                "BLOCK_SIZE_DSTATE": 64,
                "IS_TRITON_22": True,
            },
        ),
    ),
}
