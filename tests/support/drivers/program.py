"""A scheduled function as kernels, and the function of the host that launches them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import PointerType
from tvm.target import Target

from tests.support.compiled import key_of
from tests.support.cusim import _toolchain
from tests.support.environment import cache_folder
from tvm_scan import tir

__all__ = ["Driver", "Kernel", "Program", "emit", "run"]

#: TVM's calling convention of a kernel.
_LAUNCHED = 2
#: Of the pipeline: they leave the host a packed function, which nobody here calls. Those of storage
#: must come after it, and are applied to the kernels alone.
_HOST_PASSES = ["tirx.MakePackedAPI", "tirx.FP8StorageLegalize", "tirx.BF16StorageLegalize"]


@dataclass(frozen=True)
class Kernel:
    """A kernel of a program.

    Attributes
    ----------
    name : str
        Of its function.
    source : str
        Its text, or assembly for ROCm.
    parameters : tuple of str
        A dtype for each scalar, ``buffer`` for each buffer, in order.
    """

    name: str
    source: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """Kernels, and who launches them.

    Attributes
    ----------
    kernels : mapping
        By name.
    host : tirx.PrimFunc
        Allocates what lies between kernels, and launches them.
    """

    kernels: Mapping[str, Kernel]
    host: tirx.PrimFunc


class Driver(Protocol):
    """What runs kernels."""

    def buffer(self, content: np.ndarray) -> Any:
        """Memory of the device with some bytes in it."""

    def launch(
        self, kernel: Kernel, args: Sequence[Any], grid: list[int], block: list[int]
    ) -> None:
        """Run a kernel."""

    def read(self, buffer: Any, size: int) -> bytes:
        """The first bytes of a buffer, all kernels having ended."""


def emit(func: tirx.PrimFunc, target: Target) -> Program:
    """What TVM makes of a scheduled function, without a runtime; kept from run to run.

    Parameters
    ----------
    func : tirx.PrimFunc
        Whose nests are bound to threads.
    target : tvm.target.Target
        Of a GPU.
    """
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    path = _folder() / f"{key_of(mod, target)}.json"
    if not path.exists():
        _toolchain.publish(json.dumps(_emitted(mod, target)).encode(), path)
    os.utime(path)
    kept = json.loads(path.read_text())
    kernels = [Kernel(**{**k, "parameters": tuple(k["parameters"])}) for k in kept["kernels"]]
    return Program({kernel.name: kernel for kernel in kernels}, tvm.ir.load_json(kept["host"]))


def _emitted(mod: tvm.IRModule, target: Target) -> dict[str, Any]:
    with target, tvm.transform.PassContext(disabled_pass=_HOST_PASSES):
        pipeline, _, finalize = tvm.tirx.get_default_tir_pipeline(target)
        mod = pipeline(tirx.transform.BindTarget(target)(mod))
    kernels, host = [], None
    for name, func in mod.functions_items():
        if int(func.attrs.get("calling_conv", 0)) != _LAUNCHED:
            host = func
            continue
        alone = tvm.IRModule({name: func})
        for legalize in (tirx.transform.FP8StorageLegalize(), tirx.transform.BF16StorageLegalize()):
            alone = legalize(alone)
        alone = finalize()(alone)
        parameters = [_kind(parameter) for parameter in func.params]
        kernels.append(asdict(Kernel(name.name_hint, _text(alone, target), tuple(parameters))))
    assert host is not None
    return {"kernels": kernels, "host": tvm.ir.save_json(host)}


def _text(mod: tvm.IRModule, target: Target) -> str:
    kind = str(target.kind.name)
    built = tvm.get_global_func(f"target.build.{kind}")(mod, target)
    return str(built.inspect_source("asm") if kind == "rocm" else built.inspect_source())


def _kind(parameter: Any) -> str:
    return "buffer" if isinstance(parameter.ty, PointerType) else tir.dtype_of(parameter)


@lru_cache(maxsize=1)
def _folder() -> Path:
    folder = cache_folder() / "emitted"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _toolchain.remove_unused(folder.iterdir())
    return folder


def run(program: Program, driver: Driver, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Do what the host would do.

    Parameters
    ----------
    program : Program
        What `emit` made.
    driver : Driver
        Where its kernels run.
    arrays : sequence of numpy.ndarray
        One for each parameter, outputs included; they are not changed.

    Returns
    -------
    list of numpy.ndarray
        All arguments after the run. Memory between kernels begins as rubbish.
    """
    host = _Host(program, driver)
    buffers = [driver.buffer(np.ascontiguousarray(array)) for array in arrays]
    for parameter, buffer, array in zip(program.host.params, buffers, arrays, strict=True):
        host.give(parameter, buffer, array.shape)
    host.do(program.host.body)
    return [
        np.frombuffer(driver.read(buffer, array.nbytes), array.dtype).reshape(array.shape)
        for buffer, array in zip(buffers, arrays, strict=True)
    ]


class _Host:
    """The host's function, statement by statement."""

    def __init__(self, program: Program, driver: Driver) -> None:
        self.program, self.driver = program, driver
        self.numbers, self.buffers = tir.VarMap(), tir.VarMap()

    def give(self, parameter: Any, buffer: Any, shape: tuple[int, ...]) -> None:
        self.buffers[parameter] = buffer
        for extent, size in zip(tir.shape_of(parameter), shape, strict=True):
            if tir.as_int(extent) is None:
                self.numbers[extent] = tirx.IntImm(tir.dtype_of(extent), size)
            else:
                assert tir.as_int(extent) == size, (parameter, shape)

    def number(self, expr: Any) -> int:
        known = tir.as_int(tir.simplify(tir.substitute(expr, self.numbers)))
        assert known is not None, expr
        return known

    def do(self, stmt: Any) -> None:
        match stmt:
            case tirx.SeqStmt():
                for each in stmt.seq:
                    self.do(each)
            case tirx.AttrStmt():
                self.do(stmt.body)
            case tirx.Bind():
                self.numbers[stmt.var] = tirx.IntImm(
                    tir.dtype_of(stmt.var), self.number(stmt.value)
                )
            case tirx.IfThenElse():
                taken = stmt.then_case if self.number(stmt.condition) else stmt.else_case
                if taken is not None:
                    self.do(taken)
            case tirx.For():
                for i in range(self.number(stmt.extent)):
                    self.numbers[stmt.loop_var] = tirx.IntImm(tir.dtype_of(stmt.loop_var), i)
                    self.do(stmt.body)
            case tirx.AllocBuffer():
                cells = prod(self.number(extent) for extent in tir.shape_of(stmt.buffer))
                size = cells * tir.byte_size(tir.dtype_of(stmt.buffer))
                self.buffers[stmt.buffer] = self.driver.buffer(np.full(size, 0xA5, "uint8"))
            case tirx.DeclBuffer():
                self.buffers[stmt.buffer] = self.buffers[_holder(stmt.data)]
            case tirx.Evaluate():
                self._evaluate(stmt.value)
            case _:
                raise AssertionError(f"expected a statement of a host, got {stmt}")

    def _evaluate(self, call: Any) -> None:
        if tir.call_name(call) is None or not tir.call_name(call).endswith("kernel"):
            assert tir.as_int(call) is not None, call
            return
        name, *args = call.args
        kernel = self.program.kernels[str(name.value)]
        tags = [str(tag) for tag in call.attrs["launch_params"]]
        sizes = [self.number(size) for size in args[len(kernel.parameters) :]]
        extents = dict(zip(tags, sizes, strict=True))
        grid, block = (
            [extents.get(f"{which}.{axis}", 1) for axis in "xyz"]
            for which in ("blockIdx", "threadIdx")
        )
        values = [
            self.buffers[_holder(arg)] if kind == "buffer" else self.number(arg)
            for kind, arg in zip(kernel.parameters, args, strict=False)
        ]
        self.driver.launch(kernel, values, grid, block)


def _holder(data: Any) -> Any:
    """The buffer whose memory an expression is."""
    return data.args[0] if hasattr(data, "args") else data
