"""The host of a program: it allocates, and launches kernels on a driver, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.errors import ScanError
from tvm_scan.schedules.launch.driver import Driver, driver_of
from tvm_scan.schedules.launch.numbers import Number, evaluate
from tvm_scan.schedules.launch.program import Program, Step, emit
from tvm_scan.schedules.machine.device import device_of

#: What memory begins with that a host allocates: rubbish, as on any device.
_RUBBISH = 0xA5


def launched(
    func: tirx.PrimFunc, target: Target
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Return a scheduled function as one of NumPy's arrays, run by a driver of this machine.

    Parameters
    ----------
    func : tirx.PrimFunc
        Whose nests are bound to threads.
    target : tvm.target.Target
        Of a GPU.

    Returns
    -------
    callable
        From the arguments before to those after; see ``run``.

    Raises
    ------
    ScanError
        If no driver is here: it says which package brings one.
    """
    driver = driver_of(device_of(target))
    program = emit(func, target)
    return lambda arrays: run(program, driver, arrays)


def run(program: Program, driver: Driver, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Do what the host would do.

    Parameters
    ----------
    program : Program
        What ``emit`` made.
    driver : Driver
        Where its kernels run.
    arrays : sequence of numpy.ndarray
        One for each parameter, outputs included; they are not changed.

    Returns
    -------
    list of numpy.ndarray
        All arguments after the run. Memory between kernels begins as rubbish.

    Raises
    ------
    ScanError
        If an array has another shape than its parameter.
    """
    host = _Host(program, driver)
    buffers = [driver.buffer(np.ascontiguousarray(array)) for array in arrays]
    for parameter, buffer, array in zip(program.parameters, buffers, arrays, strict=True):
        host.buffers[parameter.name] = buffer
        for extent, size in zip(parameter.shape, array.shape, strict=True):
            if isinstance(extent, str):
                host.numbers.setdefault(extent, size)
            if host.number(extent) != size:
                raise ScanError(
                    f"expected {parameter.name} of {host.number(extent)} cells along an axis, got "
                    f"an array of shape {array.shape}; give one whose shapes agree"
                )
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
                    self.buffers[name] = self.driver.buffer(np.full(size, _RUBBISH, "uint8"))
                case {"launch": name, "arguments": arguments, "grid": grid, "block": block}:
                    kernel = self.program.kernels[name]
                    values = [
                        self.buffers[argument] if kind == "buffer" else self.number(argument)
                        for kind, argument in zip(kernel.parameters, arguments, strict=True)
                    ]
                    extents = [[self.number(n) for n in sizes] for sizes in (grid, block)]
                    self.driver.launch(kernel, values, *extents)
                case _:
                    raise AssertionError(f"expected a step of a host, got {step}")
