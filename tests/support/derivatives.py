"""Derivatives against differences of values."""

from collections.abc import Callable, Sequence

import torch

from tests.support.tiers import longer


def check_derivatives(
    call: Callable, inputs: Sequence[torch.Tensor], *, second: bool = True
) -> None:
    """Hold first and second derivatives of a function of float64 tensors to differences.

    All elements of the Jacobians are compared in the full tier. The default tier compares
    products with random vectors, in which a wrong element is as sure to show: it takes a call
    for each tensor instead of one for each element.
    """
    fast = longer(True, False)
    assert torch.autograd.gradcheck(call, inputs, fast_mode=fast)
    assert not second or torch.autograd.gradgradcheck(call, inputs, fast_mode=fast)
