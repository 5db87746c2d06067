"""Hugging Face's Mamba models on our scans.

transformers calls the scan of these models by a name in the module of the model; that name is
replaced, and put back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module, metadata
from types import TracebackType
from typing import Any

from torch import Tensor

from tvm_scan._locks import ForkSafeLock
from tvm_scan.torch.compat import mamba_chunk_scan_combined
from tvm_scan.torch.functions.mamba import selective_scan

__all__ = ["Patch", "patch_transformers"]

_Result = Tensor | tuple[Tensor, ...]
#: By the name of their scan: the model types, of which a version has some.
_FAMILIES = {
    "mamba_selective_scan": ("mamba", "falcon_mamba", "jamba", "zamba"),
    "mamba2_chunk_scan": (
        *("mamba2", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "zamba2"),
    ),
}
_lock = ForkSafeLock()
_originals: dict[tuple[str, str], Callable[..., Any]] = {}
_patches = 0


class Patch:
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

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


def patch_transformers() -> Patch:
    """Let transformers' models with Mamba's or Mamba-2's scan run it here, on a CPU or a GPU.

    Mamba, FalconMamba, Jamba, Zamba; Mamba-2, Bamba, FalconH1, GraniteMoeHybrid, NemotronH,
    Zamba2. It holds for models that exist already and for those made later, for training and for
    ``generate``; tensors on other devices go to transformers' own scan as before.

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
                for name, models in _FAMILIES.items()
                for model in models
                if (original := getattr(_module(model), name, None)) is not None
            }
            if not patched:
                raise RuntimeError(
                    "tvm_scan.torch.patch_transformers: expected a function "
                    f"{' or '.join(_FAMILIES)} in the Mamba models of transformers, found none in "
                    f"{metadata.version('transformers')}; install transformers>=5.23,<6"
                )
            for (model, name), original in patched.items():
                make = _selective if name == "mamba_selective_scan" else _chunked
                setattr(_module(model), name, make(original))
            _originals.update(patched)
        _patches += 1
        return Patch(tuple(model for model, _ in _originals))


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


def _here(tensor: Tensor) -> bool:
    return tensor.device.type in ("cpu", "cuda", "meta")


def _selective(original: Callable[..., _Result]) -> Callable[..., _Result]:
    @functools.wraps(original)
    def scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **options: Any,
    ) -> _Result:
        if not _here(hidden_states):
            return original(
                hidden_states,
                dt,
                A,
                B,
                C,
                D,
                z,
                delta_bias,
                delta_softplus,
                return_last_state,
                **options,
            )
        return selective_scan(
            hidden_states,
            dt,
            A,
            B,
            C,
            D,
            z,
            delta_bias,
            delta_softplus=delta_softplus,
            cu_seqlens=options.get("cu_seqlens"),
            return_last=return_last_state,
        )

    return scan


def _chunked(original: Callable[..., _Result]) -> Callable[..., _Result]:
    @functools.wraps(original)
    def scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        **options: Any,
    ) -> _Result:
        if not _here(hidden_states):
            return original(hidden_states, dt, A, B, C, chunk_size, D=D, **options)
        known = {name: options[name] for name in _CHUNKED if options.get(name) is not None}
        # Its own form returns float32, which the models' norms go on with.
        x = hidden_states.float()
        return mamba_chunk_scan_combined(x, dt, A, B, C, chunk_size, D, **known)

    return scan


#: What the models pass on; other options are of their own kernels.
_CHUNKED: tuple[str, ...]
_CHUNKED = ("z", "dt_bias", "initial_states", "seq_idx", "cu_seqlens", "dt_softplus", "dt_limit")
_CHUNKED += ("return_final_states",)
