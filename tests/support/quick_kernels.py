"""Kernels of torch's functions without TVM's checks of arguments, in seven of eight.

Torch's functions check what they are given themselves.
"""

from typing import Any

from tests.support.compiled import few_checks


def install() -> None:
    """Make the cache of kernels build them so; in the full tier, all have the checks."""
    from tvm_scan.torch.kernels import cache

    build = cache.build_kernel

    def build_quickly(spec: Any, plan: str, device: Any) -> Any:
        with few_checks(f"{spec} {plan} {device}"):
            return build(spec, plan, device)

    cache.build_kernel = build_quickly
