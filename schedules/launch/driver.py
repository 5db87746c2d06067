"""Drivers: what takes the text of kernels, and which package brings it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from tvm_scan.errors import ScanError
from tvm_scan.schedules.launch.program import Kernel
from tvm_scan.schedules.machine.device import DEVICES, Device


class Driver(Protocol):
    """A driver of GPUs, which runs kernels.

    Attributes
    ----------
    name : str
        Of the driver and the device behind it.
    """

    name: str

    def buffer(self, content: np.ndarray) -> Any:
        """Allocate memory of the device with some bytes in it.

        Parameters
        ----------
        content : numpy.ndarray
            The bytes.
        """

    def launch(
        self, kernel: Kernel, args: Sequence[Any], grid: list[int], block: list[int]
    ) -> None:
        """Run a kernel.

        Parameters
        ----------
        kernel : Kernel
            Of a program.
        args : sequence
            A buffer or a number for each of its parameters.
        grid, block : list of int
            Three extents each.
        """

    def read(self, buffer: Any, size: int) -> bytes:
        """Return the first bytes of a buffer, all kernels having ended.

        Parameters
        ----------
        buffer : object
            Of this driver.
        size : int
            How many.
        """


def driver_of(device: Device) -> Driver:
    """Driver of a kind of GPU on this machine.

    Parameters
    ----------
    device : Device
        Its row.

    Raises
    ------
    ScanError
        If there is none: it says which package brings one.
    """
    if not device.driver:
        *names, last = (row.name for row in DEVICES.values() if row.driver)
        raise ScanError(
            f"expected a device of {device.name}, found none, and nothing else here runs its "
            f"kernels; use a machine that has one, or {', '.join(names)} or {last}, whose "
            "drivers need no GPU"
        )
    module = import_module(f"tvm_scan.schedules.launch.{device.driver}")
    missing = module.why_unavailable()
    if missing:
        raise ScanError(missing)
    driver: Driver = module.driver()
    return driver
