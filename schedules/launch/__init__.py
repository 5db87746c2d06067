"""Kernels without a runtime of TVM: what a host does with them as data, and drivers that take them.

TVM's wheels have code generators for most kinds of GPUs, and runtimes for few. ``program.py``
takes a scheduled function apart into kernels and the steps of its host, of which ``numbers.py``
writes the sizes; a page in a browser performs them, and so does ``host.py``, on the drivers of
``opencl.py`` and ``webgpu.py``.
"""

from tvm_scan.schedules.launch.driver import Driver, driver_of
from tvm_scan.schedules.launch.host import launched, run
from tvm_scan.schedules.launch.program import Program, emit

__all__ = ["Driver", "Program", "driver_of", "emit", "launched", "run"]
