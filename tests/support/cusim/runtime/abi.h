// The few declarations of the CUDA driver and runtime interfaces that libtvm_runtime_cuda.so relies
// on, written out here so that no CUDA header is needed.  tests/gpu/test_cusim.py compares them with
// the toolkit's headers where there is a toolkit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cusim {

enum Status : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidImage = 200,
  kNotFound = 500,
  kNotReady = 600,
  kLaunchFailed = 719,
  kNotSupported = 801,
};

enum DeviceAttribute : int {
  kMaxThreadsPerBlock = 1,
  kMaxBlockDimX = 2,
  kMaxBlockDimY = 3,
  kMaxBlockDimZ = 4,
  kMaxGridDimX = 5,
  kMaxGridDimY = 6,
  kMaxGridDimZ = 7,
  kMaxSharedMemoryPerBlock = 8,
  kWarpSize = 10,
  kMaxRegistersPerBlock = 12,
  kClockRate = 13,
  kMultiProcessorCount = 16,
  kL2CacheSize = 38,
  kMaxThreadsPerMultiProcessor = 39,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kMaxSharedMemoryPerBlockOptin = 97,
};

constexpr int kMaxDynamicSharedSizeBytes = 8;  // a function attribute

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};

// The head of cudaDeviceProp; what follows is longer than this and is left as the caller gave it.
struct DevicePropertiesHead {
  char name[256];
  char uuid[16];
  char luid[8];
  unsigned luid_device_node_mask;
  size_t total_global_memory;
  size_t shared_memory_per_block;
};

}  // namespace cusim
