"""The workloads of ``bench.cpu`` in every tool: what runs in the tool's own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from bench.cpu_loops import inputs_of, loop_of
from bench.cpu_oracles import is_right
from bench.cpu_peers import PEERS
from bench.floors import floors_of
from bench.turns import Prepared
from tvm_scan import Recurrence, default_plan, extract, parallelize
from tvm_scan.arguments import host_target

__all__ = ["TOOLS", "prepare"]

Arrays = dict[str, np.ndarray]
Calls = dict[str, Callable[[], Any]]

#: One process for each; TVM's has our scan, its loop and the floors.
TOOLS = ("tvm", *PEERS)


def prepare(tool: str, kind: str, shape: tuple[int, ...], compiled: bool) -> Prepared:
    """The calls of a tool, with those left out whose results are wrong.

    Parameters
    ----------
    tool : str
        One of ``TOOLS``.
    kind, shape
        Of the workload, as ``bench.cpu_loops.loop_of`` takes them.
    compiled : bool
        Whether ``torch.compile`` takes part.

    Returns
    -------
    dict, dict
        Calls by name; ``wrong``, ``bytes`` that a call reads and writes, and our ``plan``.
    """
    arrays = inputs_of(kind, shape)
    facts: dict[str, Any] = {"wrong": [], "bytes": sum(a.nbytes for a in arrays.values())}
    if tool == "tvm":
        calls, facts["plan"] = _ours(kind, shape, arrays)
        return calls, facts
    calls = PEERS[tool](kind, arrays, compiled)
    facts["wrong"] = [n for n, call in calls.items() if not _peer_is_right(kind, call, arrays)]
    return {n: call for n, call in calls.items() if n not in facts["wrong"]}, facts


def _ours(kind: str, shape: tuple[int, ...], arrays: Arrays) -> tuple[Calls, str]:
    target, func = host_target(), loop_of(kind, shape)
    found = extract(func)
    assert isinstance(found, Recurrence)
    plan = default_plan(target, found)
    name = str(func.attrs["global_symbol"])
    built = {
        "tvm loop": tvm.compile(func, target=target)[name],
        "tvm_scan": tvm.compile(parallelize(func, target, plan), target=target)[name],
    }
    given = [np.ascontiguousarray(arrays[str(param.name)]) for param in func.params[:-1]]
    tensors = [tvm.runtime.tensor(array) for array in (*given, np.zeros_like(arrays["out"]))]
    calls: Calls = {}
    for label, run in built.items():
        run(*tensors)
        assert is_right(kind, tensors[-1].numpy(), arrays), f"{label}: a wrong result"
        tensors[-1].copyfrom(np.zeros_like(arrays["out"]))
        calls[label] = lambda run=run: run(*tensors)
    calls |= floors_of([a for n, a in arrays.items() if n != "out"], arrays["out"])
    return calls, str(plan)


def _peer_is_right(kind: str, call: Callable[[], Any], arrays: Arrays) -> bool:
    """Whether a peer returns, or leaves in ``out``, the expected values."""
    arrays["out"][...] = 0
    found = call()
    if isinstance(found, tuple):
        found = found[0]
    if found is None or isinstance(found, int):
        found = arrays["out"]
    if hasattr(found, "float"):  # a tensor, whose bfloat16 NumPy does not know
        found = found.float()
    return is_right(kind, np.asarray(found), arrays)
