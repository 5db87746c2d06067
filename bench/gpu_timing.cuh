// Times of single calls on the device, the second-level cache cold.
#pragma once
#include <cuda_runtime.h>

#define CHECK(call)                                \
  do {                                             \
    cudaError_t status = (call);                   \
    if (status != cudaSuccess) return (int)status; \
  } while (0)

namespace {

constexpr size_t kFlush = size_t(256) << 20;

// ms receives one time per call; the first call warms up and is not among them.
template <class F>
int timed(F call, int repeat, float* ms) {
  void* flush = nullptr;
  cudaEvent_t begin, end;
  CHECK(cudaMalloc(&flush, kFlush));
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = -1; i < repeat; ++i) {
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

}  // namespace
