"""``whole_scans``: torch's generic associative scans are exported as one operator each."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tvm_scan.errors import ScanError

_HOME = "torch._higher_order_ops.associative_scan"


@contextmanager
def whole_scans() -> Iterator[None]:
    """Export ``associative_scan(combine_mode="generic")`` as an operator, not as its slices.

    ``torch.export`` traces through torch's own decomposition of the generic mode, which leaves
    some hundred slices of strided halves where a scan was. Inside of this context it finds the
    operator that the pointwise mode leaves, so that `from_exported` sees the scan::

        with whole_scans():
            program = torch.export.export(model, args)

    The model need not change. While the context is open a function of torch is replaced, in all
    threads.

    Raises
    ------
    ScanError
        If this version of torch has no such function.
    """
    home: Any = import_module(_HOME)
    original = getattr(home, "generic_associative_scan", None)
    if original is None or not hasattr(home, "associative_scan_op"):
        raise ScanError(
            f"whole_scans: expected generic_associative_scan in {_HOME}, found none in this "
            "version of torch; export without whole_scans, which decomposes the scan"
        )

    def whole(operator: Any, leaves: Any, dim: int = 0, additional_inputs: Any = ()) -> Any:
        if dim != 0:
            return original(operator, leaves, dim, additional_inputs)
        return home.associative_scan_op(_of_one_step(operator), list(leaves), additional_inputs)

    home.generic_associative_scan = whole
    try:
        yield
    finally:
        home.generic_associative_scan = original


def _of_one_step(operator: Any) -> Any:
    """The operator on single elements; torch maps it over a batch of steps."""
    mapped = getattr(operator, "keywords", {}).get("combine_fn")
    # torch.vmap names what it maps in ``__wrapped__``, except while it is traced.
    inner = getattr(mapped, "__wrapped__", None)
    if inner is None and inspect.isfunction(mapped):
        inner = inspect.getclosurevars(mapped).nonlocals.get("func")
    if inner is None:
        raise ScanError(
            "whole_scans: expected an operator that torch.vmap maps over steps, found none in this "
            "version of torch; export without whole_scans, which decomposes the scan"
        )
    import torch.utils._pytree as pytree

    def flat(earlier: Any, later: Any) -> list[Any]:
        return pytree.tree_leaves(inner(earlier, later))

    return functools.partial(
        operator.func, *operator.args, **{**operator.keywords, "combine_fn": flat}
    )
