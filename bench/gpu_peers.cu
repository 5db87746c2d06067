// Peers of bench/gpu.py that need no Python: a copy, CUB's look-back scans, sequential kernels.
// All pointers are of the device; ms receives one time per call, the second-level cache cold.
#include <cuda_runtime.h>

#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/transform_output_iterator.h>

#include <cub/device/device_scan.cuh>

#define CHECK(call)                          \
  do {                                       \
    cudaError_t status = (call);             \
    if (status != cudaSuccess) return (int)status; \
  } while (0)

namespace {

constexpr size_t kFlush = size_t(256) << 20;

template <class F>
int timed(F call, int repeat, float* ms) {
  void* flush = nullptr;
  cudaEvent_t begin, end;
  CHECK(cudaMalloc(&flush, kFlush));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = -1; i < repeat; ++i) {  // the first call warms up
    CHECK(cudaMemset(flush, i & 255, kFlush));
    CHECK(cudaEventRecord(begin));
    call();
    CHECK(cudaEventRecord(end));
    CHECK(cudaEventSynchronize(end));
    if (i >= 0) CHECK(cudaEventElapsedTime(ms + i, begin, end));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaFree(flush);
  return (int)cudaGetLastError();
}

// The affine map of a step; the first step of a row forgets, which keeps the rows apart.
struct Step {
  const float *a, *x;
  size_t length;
  __device__ float2 operator()(size_t i) const {
    return make_float2(i % length ? a[i] : 0.0f, x[i]);
  }
};

struct Combine {
  __device__ float2 operator()(float2 f, float2 g) const {
    return make_float2(g.x * f.x, g.x * f.y + g.y);
  }
};

struct Second {
  __device__ float operator()(float2 value) const { return value.y; }
};

__global__ void affine_kernel(const float* a, const float* x, float* h, int rows, int length) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float state = 0;
  for (size_t i = (size_t)row * length, end = i + length; i < end; ++i)
    h[i] = state = a[i] * state + x[i];
}

}  // namespace

extern "C" int peer_copy(const float* x, float* y, size_t count, int repeat, float* ms) {
  return timed([=] { cudaMemcpyAsync(y, x, count * 4, cudaMemcpyDeviceToDevice); }, repeat, ms);
}

extern "C" int peer_cub_sum(const float* x, float* y, size_t count, int repeat, float* ms) {
  size_t bytes = 0;
  CHECK(cub::DeviceScan::InclusiveSum(nullptr, bytes, x, y, count));
  void* scratch = nullptr;
  CHECK(cudaMalloc(&scratch, bytes));
  auto call = [&] { cub::DeviceScan::InclusiveSum(scratch, bytes, x, y, count); };
  int status = timed(call, repeat, ms);
  cudaFree(scratch);
  return status;
}

extern "C" int peer_cub_affine(const float* a, const float* x, float* h, size_t rows,
                               size_t length, int repeat, float* ms) {
  auto steps = thrust::make_transform_iterator(thrust::make_counting_iterator(size_t(0)),
                                               Step{a, x, length});
  auto states = thrust::make_transform_output_iterator(h, Second{});
  size_t bytes = 0, count = rows * length;
  CHECK(cub::DeviceScan::InclusiveScan(nullptr, bytes, steps, states, Combine{}, count));
  void* scratch = nullptr;
  CHECK(cudaMalloc(&scratch, bytes));
  auto call = [&] {
    cub::DeviceScan::InclusiveScan(scratch, bytes, steps, states, Combine{}, count);
  };
  int status = timed(call, repeat, ms);
  cudaFree(scratch);
  return status;
}

extern "C" int peer_sequential_affine(const float* a, const float* x, float* h, size_t rows,
                                      size_t length, int repeat, float* ms) {
  auto call = [=] {
    affine_kernel<<<((int)rows + 127) / 128, 128>>>(a, x, h, (int)rows, (int)length);
  };
  return timed(call, repeat, ms);
}
