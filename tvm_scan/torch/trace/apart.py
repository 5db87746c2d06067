"""Traces that are made in a thread of their own, whose doings no transform and no export sees."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from tvm_scan.torch.arguments import check
from tvm_scan.torch.private import FAKE_TENSOR_LOG, assumed_constant
from tvm_scan.torch.trace.graph import trace
from tvm_scan.torch.trace.sizes import Kinds, has_names


@assumed_constant
def held(owner: str, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...] | None:
    """Return what a compiled program holds of a user's function.

    Parameters
    ----------
    owner : str
        Who asks, for errors.
    function : callable
        Returns a graph, whether it is elementwise, further results, and what it reads besides.
    *arguments
        Of it: the user's function, its structure, Kinds, and a device.

    Returns
    -------
    tuple, or None
        The results but the last; None if sizes that vary must not, since the function reads them,
        or is not elementwise, so that its kernel is built for its sizes.
    """
    varies = any(map(has_names, arguments[2:-1]))
    try:
        call = (_quietly, function) if varies else (function,)
        *parts, shared = _apart(*call, *arguments)
    except Exception:
        if varies:  # tried again with the sizes as they are, and reported there
            return None
        raise
    _expect_none(owner, shared)
    return None if varies and not parts[1] else tuple(parts)


def apart_from_transforms(
    flat: Callable[..., Sequence[Tensor]], kinds: Kinds, owner: str, device: torch.device
) -> tuple[str, list[Tensor]]:
    """Call `trace` where a transform of torch.func is active."""
    try:
        text, shared = _apart(trace, flat, kinds, owner, device)
    except RuntimeError as error:
        # What a transform has wrapped cannot be read in another thread.
        raise ValueError(
            f"tvm_scan.torch.{owner}: expected a function of its arguments alone under torch.func, "
            f"got one that fails without the transform ({error}); pass the tensors that it reads "
            "as leaves of xs"
        ) from error
    _expect_none(owner, shared, "torch.func")
    return text, shared


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    # The tracer of torch.export's own program is one for all threads.
    with disable_proxy_modes_tracing(), ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def _quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call without torch's log of what its operators refuse."""
    log, thread = logging.getLogger(FAKE_TENSOR_LOG), threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log.addFilter(is_of_others)
    try:
        return function(*arguments)
    finally:
        log.removeFilter(is_of_others)


def _expect_none(owner: str, shared: list[Tensor], under: str = "torch.compile") -> None:
    check(
        not shared,
        owner,
        f"a function of its arguments alone under {under}",
        f"one that reads {len(shared)} other tensors",
        "pass them as leaves of xs",
    )
