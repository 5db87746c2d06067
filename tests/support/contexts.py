"""A ``TuneContext`` without the 14 seconds in which TVM parses its stock tensor intrinsics."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.logging import get_logging_func
from tvm.target import Target

__all__ = ["light_context"]


def light_context(
    mod: tvm.IRModule,
    target: Target,
    *,
    space: Any = None,
    strategy: Any = None,
    name: str = "main",
    seed: int = 1,
    logger: Any = None,
) -> ms.TuneContext:
    """What ``TuneContext(...)`` makes, by the same constructor behind it.

    Parameters
    ----------
    mod : IRModule
        One function called ``main``.
    target : tvm.target.Target
        What to tune for.
    space : SpaceGenerator, optional
        A space that needs none of TVM's tensor intrinsics.
    strategy : SearchStrategy, optional
        For instance ``EvolutionarySearch``.
    name : str
        Of the task.
    seed : int
        Of sampling, 1 to 2^31 - 1.
    logger : logging.Logger, optional
        Where TVM's search writes.

    Returns
    -------
    TuneContext
    """
    context = ms.TuneContext.__new__(ms.TuneContext)
    context.__init_handle_by_constructor__(
        _ffi_api.TuneContext,
        mod,
        target,
        space,
        strategy,
        name,
        1,  # one thread: the same seed makes the same candidates
        seed,
        None if logger is None else get_logging_func(logger),
    )
    _ffi_api.TuneContextInitialize(context)
    return context
