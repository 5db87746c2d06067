// Stands in for PyTorch's header: what the published kernels use of it.
#pragma once
#include <cuda_bf16.h>
namespace at { using BFloat16 = __nv_bfloat16; }
