"""A compiled PrimFunc as a callable on torch tensors.

TVM's generated code checks dtype, shape and strides, but not alignment (a misaligned view crashes
in a vector load), overlap or ``requires_grad``. Those are checked or mended here, before it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_scan.arguments import as_func, as_target, host_target
from tvm_scan.schedules import ScanPlan, parallelize
from tvm_scan.schedules.choose.arguments import Chooser
from tvm_scan.schedules.machine.device import device_of
from tvm_scan.torch.compiled.signature import Signature, extents_of
from tvm_scan.torch.compiled.small import SMALL, Small
from tvm_scan.torch.kernels import devices, runtime
from tvm_scan.torch.kernels.building import build_for_gpu
from tvm_scan.torch.kernels.runtime import ALIGNMENT, aligned_empty, prepared
from tvm_scan.torch.kernels.scratch import QUESTION, shapes_of

_empty_like, _recorded = torch.empty_like, torch.is_grad_enabled


def compile_primfunc(
    func: PrimFunc,
    target: Target | str | None = None,
    plan: ScanPlan | str | Chooser | None = None,
) -> CompiledScan:
    """Schedule and compile a recurrence for torch tensors.

    Parameters
    ----------
    func : PrimFunc
        A function with a recurrence; see ``tvm_scan.extract``.
    target : tvm.target.Target or str, optional
        This machine's CPU if not given.
    plan : ScanPlan, str or callable, optional
        One plan for every recurrence of the function, as it is or as its string, or a function
        from a recurrence to its plan; as in ``tvm_scan.parallelize`` if not given.

    Returns
    -------
    CompiledScan
        Called with all parameters it writes into the given outputs; called with the inputs
        alone it returns new outputs.

    Raises
    ------
    ScanError
        If the function is no recurrence, or the plan does not fit.
    """
    target = as_target(target, "compile_primfunc") or host_target()
    return CompiledScan(as_func(func, "compile_primfunc"), target, plan)


class CompiledScan:
    """A compiled recurrence; made by ``compile_primfunc``.

    Threads may call one object at the same time on different tensors. There are no gradients:
    inputs that require them are refused.
    """

    def __init__(self, func: PrimFunc, target: Target, plan: Any = None) -> None:
        signature = self._signature = Signature(func, device_of(target))
        self.names, self.outputs = signature.names, signature.outputs
        #: Parameters that are written before they are read: they may be left out of a call.
        self.optional = signature.optional
        name = str((func.attrs or {}).get("global_symbol", "main"))
        scheduled = parallelize(func, target, plan).with_attr("global_symbol", name)
        self._scratch: Callable[..., int] | None = None
        if signature.device.is_gpu:
            self._extents = extents_of(signature.params)
            names = tuple(str(extent.name) for extent in self._extents)
            library = build_for_gpu(scheduled.with_attr("global_symbol", "main"), target, names)
            self._call, self._scratch = library["main"], library[QUESTION]
        else:
            self._call = tvm.compile(scheduled, target=target)[name]
        # Where the shapes are symbolic, the plan is for large ones, and starts threads.
        symbolic = bool(extents_of(signature.params))
        on_cpu = not signature.device.is_gpu
        self._small = Small(func) if symbolic and plan is None and on_cpu else None
        self._output_indices = [i for i, name in enumerate(self.names) if name in self.outputs]
        self._count = len(self.names)
        self._input_count, self._recipes = signature.recipes()
        # The input that the only output is like: the commonest case, at every call.
        only = self._recipes[0] if len(self._recipes) == 1 else None
        self._like = only if type(only) is int else None
        self._quick = on_cpu

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...] | None:
        """Run on ``tensors``.

        Parameters
        ----------
        *tensors : torch.Tensor
            All parameters in order, or all but those in ``optional``.

        Returns
        -------
        Tensor, tuple of Tensor or None
            New outputs where they were left out, else None.

        Raises
        ------
        ScanError
            For a wrong number, dtype, device, shape, or overlapping outputs; nothing has been
            written then.
        """
        count, recorded = len(tensors), _recorded()
        try:
            pointers, bits = [], 0
            for tensor in tensors:
                pointer = tensor.data_ptr()
                pointers.append(pointer)
                bits |= pointer
                if (recorded and tensor.requires_grad) or tensor.is_neg():
                    return self._careful(tensors)
            if bits % ALIGNMENT or runtime.substitute is not None:
                return self._careful(tensors)
            # TVM checks number, dtype, device, shape and strides of what is passed from here on.
            call, small = self._call, self._small
            if small is not None and tensors[0].numel() < SMALL:
                call = small.call or small
            if count != self._input_count:
                if count != self._count or not self._quick or self._meet(tensors, pointers):
                    return self._careful(tensors)
                call(*tensors)
                return None
            if self._like is not None:
                out = _empty_like(tensors[self._like])
                call(*tensors, out)
                return out
            fresh = [
                _empty_like(tensors[r]) if type(r) is int else _from_recipe(r, tensors)
                for r in self._recipes
            ]
            call(*tensors, *fresh)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
            # No tensor, or not the one that is expected: nothing has been written.
            return self._careful(tensors)
        return fresh[0] if len(fresh) == 1 else tuple(fresh)

    def _meet(self, tensors: tuple[torch.Tensor, ...], pointers: list[int]) -> bool:
        """Return whether an output shares memory with another argument; all are contiguous."""
        for i in self._output_indices:
            start = pointers[i]
            end = start + tensors[i].nbytes
            for j, other in enumerate(pointers):
                if other < end and i != j and other + tensors[j].nbytes > start:
                    return True
        return False

    def _careful(
        self, tensors: tuple[torch.Tensor, ...]
    ) -> torch.Tensor | tuple[torch.Tensor, ...] | None:
        signature = self._signature
        by_name = signature.match(tensors)
        sizes: dict[int, tuple[Any, int]] = {}
        for name, param in zip(self.names, signature.params, strict=True):
            if name in by_name:
                signature.check(name, param, by_name[name], sizes)
        fresh = {
            name: signature.allocate(param, sizes, tensors[0].device)
            for name, param in zip(self.names, signature.params, strict=True)
            if name not in by_name
        }
        signature.check_overlap(by_name)
        arguments, copies_back = [], []
        for name in self.names:
            tensor = fresh[name] if name in fresh else by_name[name]
            usable = prepared(tensor.detach() if tensor.requires_grad else tensor)
            if usable.data_ptr() != tensor.data_ptr() and name in self.outputs:
                copies_back.append((tensor, usable))
            arguments.append(usable)
        if self._scratch is not None:
            known = tuple(sizes[extent.__hash__()][1] for extent in self._extents)
            shapes = shapes_of(self._scratch, known)
            device = arguments[-1].device
            arguments += [torch.empty(shape, dtype=kind, device=device) for shape, kind in shapes]
        devices.run_at(devices.device_of(arguments[-1]), self._call, arguments)
        for target, source in copies_back:
            target.copy_(source)
        if not fresh:
            return None
        results = tuple(fresh.values())
        return results[0] if len(results) == 1 else results


def _from_recipe(
    recipe: tuple[torch.dtype, list[tuple[int | None, int]]], tensors: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    dtype, extents = recipe
    shape = [n if i is None else tensors[i].shape[n] for i, n in extents]
    return aligned_empty(shape, dtype, tensors[0].device)
