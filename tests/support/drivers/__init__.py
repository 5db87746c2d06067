"""Kernels for GPUs on drivers that need no GPU: OpenCL on PoCL, WGSL on Mesa's llvmpipe.

TVM's wheels have code generators for these kinds, and no runtimes. `program` takes what TVM makes
of a function apart into kernels and what the host does with them; `opencl` and `webgpu` launch
them. `amdgpu` reads what LLVM says of kernels that nothing here can launch.
"""

from tests.support.drivers.program import Driver, Kernel, Program, emit, run

__all__ = ["Driver", "Kernel", "Program", "emit", "run"]
