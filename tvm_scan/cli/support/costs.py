"""A plan's costs by analysis, in words and units."""

from __future__ import annotations

from collections.abc import Mapping

_TIME = ("us, were nothing else to be waited for", 1e6)
#: What the numbers of a cost are, and what they are multiplied by.
_UNITS = {
    "bytes": ("between main memory and the chip", 1.0),
    "flops": ("operations on floats", 1.0),
    "exps": ("exponentials, logarithms and the like", 1.0),
    "specials": ("special functions that a GPU makes of them", 1.0),
    "work": ("cycles of all tasks together, or instructions of warps", 1.0),
    "tasks": ("tasks, or threads", 1.0),
    "waits": ("barriers of a block, or joins of the pool", 1.0),
    "shared": ("accesses of warps to shared memory", 1.0),
    "past": ("bytes of them past the caches", 1.0),
    "scattered": ("bytes of lines that no prefetcher sees coming", 1.0),
    "occupancy": ("% of the threads that the chip holds; registers are not counted", 1e2),
    "memory": _TIME,
    "busy": _TIME,
    "exponentials": _TIME,
    "issue": _TIME,
    "lines": _TIME,
    "chain": _TIME,
    "tensor": _TIME,
    "alone": ("us of one core while the others wait", 1e6),
    "pool": ("us of the call and the pool", 1e6),
    "seconds": ("us, predicted", 1e6),
}


def cost_lines(cost: Mapping[str, float]) -> list[str]:
    """A line for each number of a cost that has a unit.

    Parameters
    ----------
    cost : mapping of str to float
        By name, as ``Cost.as_data`` has it; ``intensity`` beside it where it is known.
    """
    lines = []
    for name, (unit, scale) in _UNITS.items():
        if name in cost:
            value = cost[name] * scale
            shown = f"{value:,.1f}" if scale > 1 else f"{value:,.0f}"
            lines.append(f"{name:<13}{shown:>16}  {unit}")
    if "intensity" in cost:
        lines.append(f"{'intensity':<13}{cost['intensity']:>16.3g}  operations to a byte")
    return lines
