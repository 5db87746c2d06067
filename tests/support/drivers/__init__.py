"""Kernels for GPUs on drivers that need no GPU: OpenCL on PoCL, WGSL on Mesa's llvmpipe.

TVM's wheels have code generators for these kinds, and no runtimes: `tvm_scan.schedules.launch` has
the drivers and the host. `program` keeps what is emitted, `metal` runs Metal's text in the words of
OpenCL, and `amdgpu` reads what LLVM says of kernels that nothing here can launch.
"""

from tests.support.drivers.program import Driver, emit, run

__all__ = ["Driver", "emit", "run"]
