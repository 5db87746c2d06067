"""Sizes of the scratch parameters of a GPU's kernel; asked without the compiler."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Name of the function of a library that answers for sizes; see `tvm_scan.torch.kernels.workspace`.
QUESTION = "scratch"
#: Dtypes by the number that it answers.
DTYPES: tuple[str, ...]
DTYPES = ("bool", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
DTYPES += ("uint8", "uint16", "uint32", "uint64")


def shapes_of(
    question: Callable[..., int], sizes: tuple[int, ...]
) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Ask a built library for the shapes and dtypes of the parameters at its end."""
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = []
    while rank := question(len(shapes), 0, *sizes):
        extents = tuple(question(len(shapes), 2 + axis, *sizes) for axis in range(rank))
        name = DTYPES[question(len(shapes), 1, *sizes)]
        shapes.append((extents, getattr(torch, name)))
    return shapes
