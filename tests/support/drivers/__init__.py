"""Kernels for GPUs on drivers that need no GPU: OpenCL on PoCL, WGSL on Mesa's llvmpipe.

TVM's wheels have code generators for these kinds, and no runtimes. `program` performs what
`tvm_scan.browser` writes down of a host, as a page does; `opencl` and `webgpu` launch the kernels.
`amdgpu` reads what LLVM says of kernels that nothing here can launch.
"""

from tests.support.drivers.program import Driver, emit, run

__all__ = ["Driver", "emit", "run"]
