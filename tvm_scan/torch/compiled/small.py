"""Calls too small for several threads: the loop as it stands, beside the plan for large shapes."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.tirx import PrimFunc

from tvm_scan._locks import ForkSafeLock
from tvm_scan.arguments import host_target
from tvm_scan.schedules import ScanPlan, parallelize

#: Elements of the first argument below which starting threads takes longer than the loop.
SMALL = 1 << 11


class Small:
    """The sequential kernel of a function with symbolic shapes, built at its first call."""

    def __init__(self, func: PrimFunc) -> None:
        self._func = func
        self._building = ForkSafeLock()
        self.call: Any = None

    def __call__(self, *tensors: Any) -> None:
        """Build the kernel and run it; `call` runs it the next time."""
        with self._building:
            if self.call is None:
                target = host_target()
                plain = parallelize(self._func, target, ScanPlan.of("cpu", "sequential"))
                plain = plain.with_attr("global_symbol", "main")
                self.call = tvm.compile(plain, target=target)["main"]
        self.call(*tensors)
