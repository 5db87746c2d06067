"""Hugging Face's models with a recurrence on our scans.

transformers calls the scan of these models, and the short convolution before it, by names in the
module of the model; those names are replaced, and put back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module, metadata
from typing import Any

from tvm_scan._locks import ForkSafeLock
from tvm_scan.torch.replacements import CONVOLUTION, REPLACEMENTS

#: By the names of their scans: the model types, of which a version has some.
_FAMILIES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("mamba_selective_scan",): ("mamba", "falcon_mamba", "jamba", "zamba"),
    ("mamba2_chunk_scan", "mamba2_split_conv1d_scan_combined"): (
        *("mamba2", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "zamba2"),
    ),
    ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"): (
        *("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen4_exp", "olmo_hybrid"),
    ),
    ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"): (
        *("kimi_linear", "glm5_next", "bailing_hybrid"),
    ),
}
_lock = ForkSafeLock()
_originals: dict[tuple[str, str], Callable[..., Any]] = {}
_patches = 0


class Patch(AbstractContextManager["Patch"]):
    """The change by `patch_transformers`; undone by `undo`, or at the end of a ``with`` block.

    Attributes
    ----------
    models : tuple of str
        The model types that use our scan.
    """

    def __init__(self, models: tuple[str, ...]) -> None:
        self.models = models
        self._active = True

    def undo(self) -> None:
        """Put transformers' own scan back, once every patch is undone; no effect after that."""
        global _patches
        with _lock:
            if not self._active:
                return
            self._active = False
            _patches -= 1
            if _patches:
                return
            for (model, name), original in _originals.items():
                setattr(_module(model), name, original)
            _originals.clear()

    def __exit__(self, *_: object) -> None:
        self.undo()


def patch_transformers() -> Patch:
    """Let transformers' models with a recurrence run it here, on a CPU or a GPU.

    With Mamba's scan: Mamba, FalconMamba, Jamba, Zamba; with Mamba-2's: Mamba-2, Bamba, FalconH1,
    GraniteMoeHybrid, NemotronH, Zamba2; with the gated delta rule: Qwen3-Next, Qwen3.5 and its
    mixture of experts, Qwen4-Exp, OLMo-Hybrid; with Kimi delta attention: Kimi Linear, GLM5-Next,
    Bailing-Hybrid. It holds for models that exist already and for those made later, for training
    and for ``generate``, and for sequences packed into one row (``cu_seq_lens_q``, ``seq_idx``);
    tensors on other devices go to transformers' own functions as before.

    Returns
    -------
    Patch
        Undo it by ``undo()``, or use it in a ``with`` statement.

    Raises
    ------
    RuntimeError
        If transformers is not installed, or calls no scan by the name that this replaces.
    """
    global _patches
    with _lock:
        if not _originals:
            patched = {
                (model, name): original
                for names, models in _FAMILIES.items()
                for model in models
                for name in (*names, CONVOLUTION)
                if _has_scan(model, names)
                and (original := getattr(_module(model), name, None)) is not None
            }
            if not patched:
                wanted = " or ".join(name for names in _FAMILIES for name in names)
                raise RuntimeError(
                    f"tvm_scan.torch.patch_transformers: expected a function {wanted} in the "
                    "models of transformers with a recurrence, found none in "
                    f"{metadata.version('transformers')}; install transformers>=5.23,<6"
                )
            for (model, name), original in patched.items():
                setattr(_module(model), name, REPLACEMENTS[name](original))
            _originals.update(patched)
        _patches += 1
        return Patch(tuple(dict.fromkeys(model for model, _ in _originals)))


def _has_scan(model: str, names: tuple[str, ...]) -> bool:
    return any(hasattr(_module(model), name) for name in names)


def _module(model: str) -> Any:
    """The module of a model type; None where this version has no such model."""
    name = f"transformers.models.{model}"
    try:
        return import_module(f"{name}.modeling_{model}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith(name):
            return None
        raise RuntimeError(
            "tvm_scan.torch.patch_transformers: expected transformers with its model "
            f"{model!r}, got {error}; install transformers>=5.23,<6"
        ) from error
