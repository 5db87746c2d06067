"""A compiled PrimFunc as a callable on torch tensors.

TVM's generated code checks dtype, shape and strides, but not alignment (a misaligned view crashes
in a vector load), overlap or ``requires_grad``. Those are checked or mended here, before it runs.
"""

from __future__ import annotations

from typing import Any

import torch
import tvm
from tvm.target import Target
from tvm.tirx import PrimFunc

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.schedules import ScanPlan, parallelize
from tvm_scan.schedules.limits import device_of
from tvm_scan.torch.runtime import ALIGNMENT, aligned_empty, in_forked_child, launch, prepared

__all__ = ["CompiledScan", "compile"]


def compile(
    func: PrimFunc, target: Target | None = None, plan: ScanPlan | None = None
) -> CompiledScan:
    """Schedule and compile a recurrence for torch tensors.

    Parameters
    ----------
    func : PrimFunc
        A function with a recurrence; see ``tvm_scan.extract``.
    target : tvm.target.Target, optional
        This machine's CPU if not given.
    plan : ScanPlan, optional
        The default plan of the target if not given.

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
    target = target or Target.from_device("cpu")
    name = str((func.attrs or {}).get("global_symbol", "main"))
    scheduled = parallelize(func, target, plan).with_attr("global_symbol", name)
    return CompiledScan(func, tvm.compile(scheduled, target=target)[name], device_of(target))


class CompiledScan:
    """A compiled recurrence; made by ``compile``.

    It holds no state between calls, so that threads may call one object at the same time on
    different tensors. There are no gradients: inputs that require them are refused.
    """

    def __init__(self, func: PrimFunc, call: Any, device: str) -> None:
        self._call, self._device = call, device
        self._params = list(func.params)
        self._count = len(self._params)
        self.names = tuple(str(p.name) for p in self._params)
        stored = tir.buffers_stored(func.body)
        loaded = tir.buffers_loaded(func.body)
        self.outputs = tuple(str(p.name) for p in self._params if p in stored)
        state = self._states(func)
        self._places = [i for i, name in enumerate(self.names) if name in self.outputs]
        #: By shapes of the inputs: what to allocate.
        self._fresh: dict[tuple[torch.Size, ...], list[tuple[torch.Size, torch.dtype]]] = {}
        #: Parameters that are written before they are read: they may be left out of a call.
        self.optional = tuple(
            str(p.name) for p in self._params if p in stored and (p not in loaded or p not in state)
        )

    @staticmethod
    def _states(func: PrimFunc) -> tir.VarMap:
        """Written parameters whose content before the call matters."""
        from tvm_scan.extraction import extract_nest, root_nests
        from tvm_scan.recurrence import Recurrence
        from tvm_scan.schedules.splice import ensure_blocks

        blocked = ensure_blocks(func)
        needed = tir.VarMap()
        for nest in root_nests(blocked):
            found = extract_nest(blocked, nest)
            if not isinstance(found, Recurrence):
                for buffer in tir.buffers_loaded(nest).keys():
                    needed[buffer] = True
                continue
            for stmt in (found.start, found.prologue, found.body):
                if stmt is not None:
                    for buffer in tir.buffers_loaded(stmt).keys():
                        needed[buffer] = True
        return needed

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
        results = self._quick(tensors)
        if results is None:
            return self._careful(tensors)
        return None if not results else results[0] if len(results) == 1 else results

    def _quick(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        """Run on tensors of known shapes that need neither check nor copy; None for others.

        TVM's own code checks number, dtype, shape and strides, but not what is here.
        """
        fresh: tuple[torch.Tensor, ...] = ()
        bits, recorded = 0, torch.is_grad_enabled()
        try:
            if len(tensors) != self._count:
                made = self._fresh.get(tuple([tensor.shape for tensor in tensors]))
                if made is None:
                    return None
                fresh = tuple([torch.empty(shape, dtype=dtype) for shape, dtype in made])
                for tensor in fresh:
                    bits |= tensor.data_ptr()
            elif self._places and self._meet(tensors):
                return None
            for tensor in tensors:
                bits |= tensor.data_ptr()
                if (recorded and tensor.requires_grad) or not tensor.is_cpu:
                    return None
        except (AttributeError, RuntimeError):  # no tensor, or one without memory
            return None
        if bits % ALIGNMENT or in_forked_child():
            return None
        try:
            self._call(*tensors, *fresh)
        except (TypeError, ValueError):  # from the checks, before anything is written
            return None
        return fresh

    def _meet(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether an output shares memory with another argument; all are contiguous."""
        spans = [(start := t.data_ptr(), start + t.nbytes) for t in tensors]
        for i in self._places:
            first, end = spans[i]
            for j, (other, other_end) in enumerate(spans):
                if first < other_end and other < end and i != j:
                    return True
        return False

    def _careful(
        self, tensors: tuple[torch.Tensor, ...]
    ) -> torch.Tensor | tuple[torch.Tensor, ...] | None:
        given = self._match(tensors)
        sizes: dict[int, tuple[Any, int]] = {}
        for name, param in zip(self.names, self._params, strict=True):
            if name in given:
                self._check(name, param, given[name], sizes)
        fresh = {
            name: self._allocate(param, sizes, tensors[0].device)
            for name, param in zip(self.names, self._params, strict=True)
            if name not in given
        }
        self._check_overlap(given)
        arguments, copies_back = [], []
        for name in self.names:
            tensor = fresh[name] if name in fresh else given[name]
            usable = prepared(tensor.detach() if tensor.requires_grad else tensor)
            if usable.data_ptr() != tensor.data_ptr() and name in self.outputs:
                copies_back.append((tensor, usable))
            arguments.append(usable)
        launch(self._call, *arguments)
        for target, source in copies_back:
            target.copy_(source)
        if not fresh:
            return None
        results = tuple(fresh.values())
        if self.names[len(given) :] == tuple(fresh):  # so that the outputs may be appended
            if len(self._fresh) > 4096:
                self._fresh.clear()
            shapes = tuple(tensor.shape for tensor in given.values())
            self._fresh[shapes] = [(tensor.shape, tensor.dtype) for tensor in results]
        return results[0] if len(results) == 1 else results

    def _match(self, tensors: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        needed = [name for name in self.names if name not in self.optional]
        if len(tensors) == len(self.names):
            names = list(self.names)
        elif len(tensors) == len(needed) and tensors:
            names = needed
        else:
            raise ScanError(
                f"tvm_scan.torch: expected {len(self.names)} tensors ({', '.join(self.names)}) or "
                f"{len(needed)} ({', '.join(needed)}), got {len(tensors)}; pass one per parameter"
            )
        return dict(zip(names, tensors, strict=True))

    def _check(
        self, name: str, param: Any, tensor: torch.Tensor, sizes: dict[int, tuple[Any, int]]
    ) -> None:
        def fail(expected: str, found: str, fix: str) -> ScanError:
            return ScanError(f"tvm_scan.torch: expected {expected} for {name}, got {found}; {fix}")

        if not isinstance(tensor, torch.Tensor):
            raise fail("a torch tensor", type(tensor).__name__, "convert it with torch.as_tensor")
        if tensor.device.type != self._device:
            raise fail(f"a tensor on {self._device}", str(tensor.device), "move it with .to(...)")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype != tir.dtype_of(param):
            wanted = tir.dtype_of(param)
            raise fail(wanted, dtype, f"convert it with .to(torch.{wanted})")
        if tensor.requires_grad and torch.is_grad_enabled():
            raise fail(
                "a tensor without requires_grad",
                "one that requires a gradient",
                "call under torch.no_grad() or pass .detach(): this function has no gradient",
            )
        shape = tir.shape_of(param)
        if tensor.dim() != len(shape):
            raise fail(f"{len(shape)} dimensions", f"shape {tuple(tensor.shape)}", "reshape it")
        for dim, (extent, found) in enumerate(zip(shape, tensor.shape, strict=True)):
            key = extent.__hash__()
            constant = tir.as_int(extent)
            wanted = constant if constant is not None else sizes.setdefault(key, (extent, found))[1]
            if wanted != found:
                raise fail(
                    f"{wanted} in dimension {dim}",
                    f"shape {tuple(tensor.shape)}",
                    "give every tensor the extents of the function",
                )

    def _allocate(
        self, param: Any, sizes: dict[int, tuple[Any, int]], device: torch.device
    ) -> torch.Tensor:
        shape = []
        for extent in tir.shape_of(param):
            constant = tir.as_int(extent)
            known = (constant,) if constant is not None else sizes.get(extent.__hash__(), ())[1:]
            if not known:
                raise ScanError(
                    f"tvm_scan.torch: expected the extent {extent} of {param.name} to follow from "
                    "the inputs, found that it does not; pass the output as well"
                )
            shape.append(known[0])
        dtype = getattr(torch, tir.dtype_of(param))
        return aligned_empty(shape, dtype, device)

    def _check_overlap(self, given: dict[str, torch.Tensor]) -> None:
        for name in self.outputs:
            if name not in given:
                continue
            for other, tensor in given.items():
                if other != name and _overlap(given[name], tensor):
                    raise ScanError(
                        f"tvm_scan.torch: expected {name} and {other} in separate memory, got "
                        "tensors that overlap; clone one of them"
                    )
            if _self_overlap(given[name]):
                raise ScanError(
                    f"tvm_scan.torch: expected an output {name} with one element per place, got "
                    "an expanded tensor; pass .contiguous()"
                )


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First and one past the last byte that a tensor touches."""
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return start, start + (reach + 1) * tensor.element_size()


def _overlap(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.numel() == 0 or right.numel() == 0:
        return False
    (a, b), (c, d) = _span(left), _span(right)
    return a < d and c < b


def _self_overlap(tensor: torch.Tensor) -> bool:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.numel() > 0 and any(n > 1 and s == 0 for n, s in pairs)
