"""Hugging Face's Mamba models on our scan.

transformers calls the scan of these models by a name in the module of the model; that name is
replaced, and put back. Mamba-2 is not among them: its scan is a product of matrices chunk by
chunk, which a scan element by element does not beat.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from importlib import import_module, metadata
from types import TracebackType
from typing import Any

from torch import Tensor

from tvm_scan.torch.mamba import selective_scan

__all__ = ["Patch", "patch_transformers"]

_FAMILY = ("mamba", "falcon_mamba", "jamba")
_NAME = "mamba_selective_scan"
_lock = threading.Lock()
_originals: dict[str, Callable[..., Any]] = {}
_patches = 0


class Patch:
    """What `patch_transformers` did; undone by `undo`, or at the end of a ``with`` block.

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
            for model, original in _originals.items():
                setattr(_module(model), _NAME, original)
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
    """Let transformers' Mamba, FalconMamba and Jamba run their scan here, on CPU tensors.

    It holds for models that exist already and for those made later, for training and for
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
            found = {}
            for model in _FAMILY:
                original = getattr(_module(model), _NAME, None)
                if original is not None:
                    found[model] = original
            if not found:
                raise RuntimeError(
                    f"tvm_scan.torch.patch_transformers: expected a function {_NAME} in the Mamba "
                    f"models of transformers, found none in {metadata.version('transformers')}; "
                    "install transformers>=5.23,<6"
                )
            for model, original in found.items():
                setattr(_module(model), _NAME, _replacement(original))
            _originals.update(found)
        _patches += 1
        return Patch(tuple(_originals))


def _module(model: str) -> Any:
    try:
        return import_module(f"transformers.models.{model}.modeling_{model}")
    except ModuleNotFoundError as error:
        raise RuntimeError(
            "tvm_scan.torch.patch_transformers: expected transformers with its model "
            f"{model!r}, got {error}; install transformers>=5.23,<6"
        ) from error


def _replacement(original: Callable[..., Any]) -> Callable[..., Any]:
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
    ) -> Tensor | tuple[Tensor, Tensor]:
        if hidden_states.device.type not in ("cpu", "cuda", "meta"):
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
