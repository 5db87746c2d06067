"""Kernels of torch's functions that are built quickly, in seven of eight.

TVM's checks of arguments are left out, which torch's functions make themselves, and half of LLVM's
optimisations. In the full tier all kernels are those that users run.
"""

from typing import Any

from tvm.target import Target

from tests.support.compiled import few_checks
from tests.support.tiers import drawn


def install() -> None:
    """Make the cache of kernels build them so."""
    from tvm_scan.torch.kernels import building, cache

    build, target_of = cache.build_kernel, building.target_of

    def quick_target(device: Any) -> Target:
        target = target_of(device)
        if not name or device.is_gpu or drawn(name, 8):
            return target
        return Target({**target.export(), "opt-level": 1})

    name = ""

    def build_quickly(spec: Any, plan: str, device: Any) -> Any:
        nonlocal name
        name = f"{spec} {plan} {device}"
        try:
            with few_checks(name):
                return build(spec, plan, device)
        finally:
            name = ""

    building.target_of = quick_target
    cache.build_kernel = build_quickly
