// Stands in for PyTorch's header: everything runs on the default stream.
#pragma once
#include <cuda_runtime.h>
namespace at { namespace cuda {
struct Stream { cudaStream_t stream() const { return nullptr; } };
inline Stream getCurrentCUDAStream() { return {}; }
} }
