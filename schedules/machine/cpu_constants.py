"""Which constants a CPU target has: what the target can do, on a machine that was measured."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path

from tvm.target import Target
from tvm.target.codegen import target_has_features

from tvm_scan.schedules.machine.cpu_chip import CpuChip

__all__ = ["chip_of", "processor_name"]


@lru_cache(maxsize=64)
def chip_of(target: Target) -> CpuChip:
    """Constants of a target: its instructions, and of the machine what the target does not say.

    Parameters
    ----------
    target : tvm.target.Target
        Of a CPU. Its features count, not those of the machine that compiles.

    Returns
    -------
    CpuChip
    """
    return with_features(_machine(), target)


def with_features(chip: CpuChip, target: Target) -> CpuChip:
    """A machine's constants under the instructions of a target."""

    def has(feature: str) -> bool:
        return str(target.kind.name) == "llvm" and bool(target_has_features(feature, target))

    width = 64 if has("avx512f") else 32 if has("avx2") else 16
    product = chip.product_latency
    if has("sse2") and not has("fma"):
        # A sum of its own after every product.
        product += chip.sum_latency + 1.0
    # Below AVX-512 a vector that moves by some lanes is put together of two shuffles.
    shuffles = chip.shuffle_issue if width == 64 else chip.shuffle_issue / 2
    return replace(chip, vector_bytes=width, product_latency=product, shuffle_issue=shuffles)


@cache
def _machine() -> CpuChip:
    sizes = _cache_sizes()
    return CpuChip(
        nearest=sizes.get(1, CpuChip.nearest),
        private=sizes.get(2, CpuChip.private),
    )


def _cache_sizes() -> dict[int, int]:
    """Level of a data cache -> its bytes; empty where the machine does not say."""
    found = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, level, text = (
                (folder / name).read_text().strip() for name in ("type", "level", "size")
            )
        except OSError:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
        if kind != "Instruction" and level.isdigit() and text[:-1].isdigit() and unit:
            found[int(level)] = int(text[:-1]) * unit
    return found


@cache
def processor_name() -> str:
    """Of this machine's processor, in letters, digits and dashes."""
    text = platform.processor()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    text = line.split(":", 1)[1]
                    break
    except OSError:
        pass
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
