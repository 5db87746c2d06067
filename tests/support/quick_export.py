"""``torch.export`` without its slowest steps where nothing was registered since the last time.

torch 2.13 looks every operator of C++ up by name for each namespace and each decomposition of a
program, asks each operator whether it may stay whole, and sets a dozen rules of each of them: half
of the import of a small program.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

#: Operators with a composite rule: the function's effect depends on their names alone.
_KEY = "CompositeImplicitAutograd"


def install() -> None:
    """Make ``run_decompositions`` look operators up again only where there are others."""
    import torch
    from torch._export import utils

    if utils._materialize_cpp_cia_ops.__module__ == __name__:
        return  # another folder of tests has
    look_up: Callable[[], None] = utils._materialize_cpp_cia_ops
    collect = utils._collect_all_valid_cia_ops_for_namespace
    names: list[str] = []
    looked_up: list[Hashable] = [None]
    collected: dict[str, tuple[Hashable, set[Any]]] = {}

    def registered() -> Hashable:
        """Changes with what is registered from Python, and with the libraries that are loaded."""
        library = torch.library
        return (
            frozenset(library._defs),
            frozenset(library._impls),
            frozenset(torch.ops.loaded_libraries),
        )

    def look_up_new() -> None:
        now = registered()
        if now != looked_up[0]:
            found = torch._C._dispatch_get_registrations_for_dispatch_key(_KEY)
            if found != names:
                look_up()
                names[:] = found
            looked_up[0] = now

    def collect_new(namespace: Any) -> set[Any]:
        now = registered(), len(namespace._dir)
        before = collected.get(namespace.name)
        if before is None or before[0] != now:
            found = collect(namespace)
            before = collected[namespace.name] = (registered(), len(namespace._dir)), found
        return before[1]

    utils._materialize_cpp_cia_ops = look_up_new
    utils._collect_all_valid_cia_ops_for_namespace = collect_new
    _override_at_once()


def _override_at_once() -> None:
    """Set the rules that operators have within a decomposition by what they were the last time."""
    from torch._C import DispatchKey
    from torch._subclasses.fake_impls import op_implementations_dict as fakes
    from torch.export import exported_program

    override = exported_program._override_composite_implicit_decomp
    known: dict[Any, tuple[Any, Any]] = {}  # by operator: its rules outside and within

    def rules_of(operator: Any) -> tuple[dict[Any, Any], Any]:
        return operator.py_kernels.copy(), fakes.get(operator)

    @contextlib.contextmanager
    def override_known(decompositions: dict[Any, Any]) -> Iterator[None]:
        outside = {each: rules_of(each) for each in decompositions}
        new = {e: d for e, d in decompositions.items() if known.get(e, [None])[0] != outside[e]}
        with override(new):
            known.update({each: (outside[each], rules_of(each)) for each in new})
            old = decompositions.keys() - new.keys()
            for each in old:
                kernels, fakes[each] = known[each][1]
                # All others are what the operator itself does.
                each.py_kernels.update(kernels)
                each.py_kernels[DispatchKey.CompositeImplicitAutograd] = decompositions[each]
                each._dispatch_cache.clear()
            try:
                yield
            finally:
                for each in old:
                    each.py_kernels.clear()
                    each.py_kernels.update(outside[each][0])
                    each._dispatch_cache.clear()
                    fakes.pop(each, None)

    exported_program._override_composite_implicit_decomp = override_known
