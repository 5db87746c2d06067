// Stands in for PyTorch's header: what the published kernels use of it.
#pragma once
#include <cuda_fp16.h>
namespace at { using Half = __half; }
