// Peers of bench/gpu.py that need nothing but the toolkit: a copy, CUB's look-back scans, and our
// own kernels after published schemes. All pointers are of the device.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <thrust/iterator/transform_output_iterator.h>

#include <cub/device/device_scan.cuh>

#include "gpu_schemes.cuh"
#include "gpu_timing.cuh"

namespace {

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

extern "C" int peer_thread_per_row(const float* a, const float* x, float* h, size_t rows,
                                   size_t length, int repeat, float* ms) {
  auto call = [=] {
    thread_per_row<<<((int)rows + 127) / 128, 128>>>(a, x, h, (int)rows, (int)length);
  };
  return timed(call, repeat, ms);
}

extern "C" int peer_block_per_row(const float* a, const float* x, float* h, size_t rows,
                                  size_t length, int repeat, float* ms) {
  if (length % 4) return (int)cudaErrorInvalidValue;
  const int warps = length >= 4096 ? 32 : (int)(length + 127) / 128;
  auto call = [=] { block_per_row<<<(int)rows, 32 * warps>>>(a, x, h, (int)length); };
  return timed(call, repeat, ms);
}

extern "C" int peer_block_per_channel(const float* u, const float* delta, const float* A,
                                      const float* B, const float* C, const float* D,
                                      const float* z, const float* bias, float* out, size_t batch,
                                      size_t dim, size_t length, size_t states, int repeat,
                                      float* ms) {
  if (length % 4) return (int)cudaErrorInvalidValue;
  const int threads = length <= 512 ? 32 : length <= 1024 ? 64 : 128;
  auto call = [=] {
    block_per_channel<<<(int)(batch * dim), threads>>>(u, delta, A, B, C, D, z, bias, out,
                                                       (int)dim, (int)length, (int)states);
  };
  return timed(call, repeat, ms);
}

extern "C" int peer_block_per_head(const float* r, const float* k, const float* v, const float* w,
                                   const float* u, float* y, size_t heads, size_t length,
                                   size_t size, int repeat, float* ms) {
  if (size != KEYS) return (int)cudaErrorInvalidValue;
  auto call = [=] { block_per_head<<<(int)heads, KEYS>>>(r, k, v, w, u, y, (int)length); };
  return timed(call, repeat, ms);
}
