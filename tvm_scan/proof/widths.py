"""Widths and limits of dtypes."""

from __future__ import annotations

__all__ = ["bits_of", "is_bool", "is_integer", "is_signed", "limits"]


def is_bool(dtype: str) -> bool:
    """Whether ``dtype`` is the truth values."""
    return dtype == "bool"


def is_integer(dtype: str) -> bool:
    """Whether ``dtype`` is of integers; bool is not."""
    return dtype.startswith(("int", "uint"))


def is_signed(dtype: str) -> bool:
    """Whether ``dtype`` has negative integers."""
    return dtype.startswith("int")


def bits_of(dtype: str) -> int:
    """Bits of an integer."""
    return int("".join(filter(str.isdigit, dtype)))


def limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest integer."""
    bits = bits_of(dtype)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed(dtype) else (0, (1 << bits) - 1)
