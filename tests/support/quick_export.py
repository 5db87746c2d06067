"""``torch.export`` without its slowest step where nothing was registered since the last time.

torch 2.13 looks every operator of C++ up by name for each namespace and each decomposition of a
program: a third of the import of a small one.
"""

from collections.abc import Callable

#: Operators with a composite rule: the function's effect depends on their names alone.
_KEY = "CompositeImplicitAutograd"


def install() -> None:
    """Make ``run_decompositions`` look operators up again only where there are others."""
    import torch
    from torch._export import utils

    look_up: Callable[[], None] = utils._materialize_cpp_cia_ops
    known: list[str] = []

    def look_up_new() -> None:
        names = torch._C._dispatch_get_registrations_for_dispatch_key(_KEY)
        if names != known:
            look_up()
            known[:] = names

    utils._materialize_cpp_cia_ops = look_up_new
