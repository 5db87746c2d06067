"""Programs of `tvm_scan.browser` on this machine's drivers, in place of a page's JavaScript."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tvm
from tvm import tirx
from tvm.target import Target

from tests.support.compiled import key_of
from tests.support.cusim import _toolchain
from tests.support.drivers.amdgpu import without_tools
from tests.support.environment import cache_folder
from tvm_scan import tir
from tvm_scan.browser import program
from tvm_scan.browser.numbers import Number, evaluate
from tvm_scan.browser.program import Kernel, Program, Step

__all__ = ["Driver", "emit", "run"]


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
    """`program.emit`, kept from run to run."""
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    path = _folder() / f"{key_of(mod, target)}.json"
    if not path.exists():
        form = "asm" if str(target.kind.name) == "rocm" else ""
        with without_tools():
            emitted = program.emit(func, target, form=form)
        _toolchain.publish(json.dumps(emitted.as_data()).encode(), path)
    os.utime(path)
    return Program.from_data(json.loads(path.read_text()))


@lru_cache(maxsize=1)
def _folder() -> Path:
    # Named for the form of what is in it.
    folder = cache_folder() / "programs"
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
    for parameter, buffer, array in zip(program.parameters, buffers, arrays, strict=True):
        host.buffers[parameter.name] = buffer
        for extent, size in zip(parameter.shape, array.shape, strict=True):
            if isinstance(extent, str):
                host.numbers[extent] = size
            assert host.number(extent) == size, (parameter, array.shape)
    host.perform(program.steps)
    return [
        np.frombuffer(driver.read(buffer, array.nbytes), array.dtype).reshape(array.shape)
        for buffer, array in zip(buffers, arrays, strict=True)
    ]


class _Host:
    """The steps of a host, one after the other."""

    def __init__(self, program: Program, driver: Driver) -> None:
        self.program, self.driver = program, driver
        self.numbers: dict[str, int] = {}
        self.buffers: dict[str, Any] = {}

    def number(self, number: Number) -> int:
        return evaluate(number, self.numbers)

    def perform(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case {"let": name, "value": value}:
                    self.numbers[name] = self.number(value)
                case {"if": condition, "then": then, "else": orelse}:
                    self.perform(then if self.number(condition) else orelse)
                case {"for": name, "extent": extent, "do": body}:
                    for i in range(self.number(extent)):
                        self.numbers[name] = i
                        self.perform(body)
                case {"allocate": name, "dtype": dtype, "shape": shape}:
                    size = prod(self.number(extent) for extent in shape) * tir.byte_size(dtype)
                    self.buffers[name] = self.driver.buffer(np.full(size, 0xA5, "uint8"))
                case {"launch": name, "arguments": arguments, "grid": grid, "block": block}:
                    kernel = self.program.kernels[name]
                    values = [
                        self.buffers[argument] if kind == "buffer" else self.number(argument)
                        for kind, argument in zip(kernel.parameters, arguments, strict=True)
                    ]
                    grid, block = ([self.number(n) for n in sizes] for sizes in (grid, block))
                    self.driver.launch(kernel, values, grid, block)
                case _:
                    raise AssertionError(f"expected a step of a host, got {step}")
