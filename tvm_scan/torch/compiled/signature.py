"""The parameters of a compiled function, and whether torch tensors fit them."""

from __future__ import annotations

from typing import Any

import torch
from tvm.tirx import PrimFunc

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.schedules.machine.device import Device
from tvm_scan.torch.compiled.overlap import overlap, self_overlap
from tvm_scan.torch.kernels.runtime import aligned_empty


class Signature:
    """Names, shapes and dtypes of the parameters of a function, and which it writes."""

    def __init__(self, func: PrimFunc, device: Device) -> None:
        self.params = list(func.params)
        self.device = device
        self.names = tuple(str(p.name) for p in self.params)
        stored = tir.buffers_stored(func.body)
        loaded = tir.buffers_loaded(func.body)
        self.outputs = tuple(str(p.name) for p in self.params if p in stored)
        state = _states(func)
        #: Parameters that are written before they are read: they may be left out of a call.
        self.optional = tuple(
            str(p.name) for p in self.params if p in stored and (p not in loaded or p not in state)
        )

    def recipes(self) -> tuple[int, list[Any]]:
        """Number of inputs of a call without outputs, and how to make each output from them.

        An output is like the input with a number, or (dtype, extents), where an extent is an
        input and an axis of it, or (None, a constant). TVM checks the shapes of all tensors.
        """
        first = len(self.names) - len(self.optional)
        if self.device.is_gpu or not first or self.names[first:] != self.optional:
            return -1, []
        shapes = [tir.shape_of(p) for p in self.params[:first]]
        recipes: list[Any] = []
        for output in self.params[first:]:
            extents = []
            for extent in tir.shape_of(output):
                constant = tir.as_int(extent)
                axes = ((i, d) for i, shape in enumerate(shapes) for d, n in enumerate(shape))
                same = ((i, d) for i, d in axes if tir.structurally_equal(shapes[i][d], extent))
                extents.append((None, constant) if constant is not None else next(same, None))
            if None in extents:
                return -1, []
            dtype = tir.dtype_of(output)
            like = (
                i
                for i, shape in enumerate(shapes)
                if len(shape) == len(extents) and tir.dtype_of(self.params[i]) == dtype
                if all(map(tir.structurally_equal, shape, tir.shape_of(output)))
            )
            recipes.append(next(like, (getattr(torch, dtype), extents)))
        return first, recipes

    def match(self, tensors: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        """Return the tensors by parameter; raise for a wrong number of them."""
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

    def check(
        self, name: str, param: Any, tensor: torch.Tensor, sizes: dict[int, tuple[Any, int]]
    ) -> None:
        """Raise unless a tensor fits a parameter; note the sizes of symbolic extents."""

        def fail(expected: str, found: str, fix: str) -> ScanError:
            return ScanError(f"tvm_scan.torch: expected {expected} for {name}, got {found}; {fix}")

        if not isinstance(tensor, torch.Tensor):
            raise fail("a torch tensor", type(tensor).__name__, "convert it with torch.as_tensor")
        home = self.device.runtime
        if tensor.device.type != home:
            raise fail(f"a tensor on {home}", str(tensor.device), "move it with .to(...)")
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
            size = constant if constant is not None else sizes.setdefault(key, (extent, found))[1]
            if size != found:
                raise fail(
                    f"{size} in dimension {dim}",
                    f"shape {tuple(tensor.shape)}",
                    "give every tensor the extents of the function",
                )

    def allocate(
        self, param: Any, sizes: dict[int, tuple[Any, int]], device: torch.device
    ) -> torch.Tensor:
        """Allocate an output by the sizes that are known."""
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

    def check_overlap(self, by_name: dict[str, torch.Tensor]) -> None:
        """Raise if an output shares memory with another tensor or with itself."""
        for name in self.outputs:
            if name not in by_name:
                continue
            for other, tensor in by_name.items():
                if other != name and overlap(by_name[name], tensor):
                    raise ScanError(
                        f"tvm_scan.torch: expected {name} and {other} in separate memory, got "
                        "tensors that overlap; clone one of them"
                    )
            if self_overlap(by_name[name]):
                raise ScanError(
                    f"tvm_scan.torch: expected an output {name} whose elements share no memory, "
                    "got an expanded tensor; pass .contiguous()"
                )


def _states(func: PrimFunc) -> tir.VarMap:
    """Written parameters whose content before the call matters."""
    from tvm_scan.recurrence import Recurrence
    from tvm_scan.schedules.analysis import analyse

    analysis = analyse(func)
    needed = tir.VarMap()
    for nest, scan in zip(analysis.nests, analysis.scans, strict=True):
        if not isinstance(scan, Recurrence):
            for buffer in tir.buffers_loaded(nest).keys():
                needed[buffer] = True
            continue
        for stmt in (scan.start, scan.prologue, scan.body):
            if stmt is not None:
                for buffer in tir.buffers_loaded(stmt).keys():
                    needed[buffer] = True
    return needed


def extents_of(params: list[Any]) -> list[Any]:
    """Return the symbolic extents that shapes are made of, each once."""
    extents = tir.VarMap()
    for param in params:
        for extent in tir.shape_of(param):
            for var in tir.variables(extent).keys():
                extents[var] = True
    return extents.keys()
