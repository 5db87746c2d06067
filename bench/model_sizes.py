"""Configurations of the models of `bench.relax_models`: small ones, and real head sizes."""

from __future__ import annotations

from typing import Any

__all__ = ["MODELS", "REAL", "VOCABULARY"]

VOCABULARY = 97
_COMMON = {"vocab_size": VOCABULARY, "num_hidden_layers": 2}
_SSM = {**_COMMON, "hidden_size": 64, "state_size": 16}
_HEADS = {"head_dim": 16, "num_heads": 8, "n_groups": 1, "chunk_size": 16}
_ATTENTION = {"num_attention_heads": 4, "intermediate_size": 128}
_GEMMA = {
    "hidden_size": 64,
    "lru_width": 64,
    "num_key_value_heads": 1,
    "attention_window_size": 64,
    "block_types": ("recurrent", "recurrent"),
}
_RWKV = {"hidden_size": 64, "attention_hidden_size": 64, "context_length": 4096}
_HYBRID = {
    "hidden_size": 64,
    "num_key_value_heads": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "attn_layer_indices": [1],
}

_JAMBA = {
    "hidden_size": 64,
    "num_key_value_heads": 2,
    "mamba_d_state": 16,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 1,
    "num_experts_per_tok": 1,
}

#: Name -> (class prefix in transformers, configuration).
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("Mamba", _SSM),
    "falcon_mamba": ("FalconMamba", _SSM),
    "mamba2": ("Mamba2", {**_SSM, **_HEADS, "expand": 2}),
    "recurrent_gemma": ("RecurrentGemma", {**_COMMON, **_ATTENTION, **_GEMMA}),
    "rwkv": ("Rwkv", {**_COMMON, **_RWKV}),
    "bamba": ("Bamba", {**_COMMON, **_ATTENTION, **_HYBRID}),
    "jamba": ("Jamba", {**_COMMON, **_ATTENTION, **_JAMBA}),
}

#: Heads, states and convolutions of the sizes that published models have (those of 130 to 170
#: million parameters for mamba, mamba2 and rwkv); widths above 1024 are cut to 1024, so that two
#: layers fit.
REAL: dict[str, dict[str, Any]] = {
    "mamba": {"hidden_size": 768, "state_size": 16, "conv_kernel": 4},
    "falcon_mamba": {"hidden_size": 1024, "state_size": 16, "conv_kernel": 4},
    "mamba2": {
        "hidden_size": 768,
        "state_size": 128,
        "head_dim": 64,
        "num_heads": 24,
        "chunk_size": 256,
    },
    "recurrent_gemma": {
        "hidden_size": 1024,
        "lru_width": 1024,
        "num_attention_heads": 4,
        "head_dim": 256,
        "intermediate_size": 3072,
        "attention_window_size": 2048,
    },
    "rwkv": {"hidden_size": 768, "attention_hidden_size": 768},
    "bamba": {
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "mamba_n_heads": 32,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_chunk_size": 256,
        "intermediate_size": 3072,
    },
    "jamba": {
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "intermediate_size": 3072,
    },
}
