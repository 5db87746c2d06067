// libcudart.so.13: the part of the runtime interface that libtvm_runtime_cuda.so imports.
//
// There is one device and one stream, and everything is done when the call returns.

#include <chrono>
#include <cstdio>
#include <cstring>

#include "abi.h"

// In libcuda.so.1, which keeps the list of allocations.
extern "C" void* cusim_allocate(size_t size);
extern "C" int cusim_release(void* address);

using namespace cusim;

namespace {

constexpr size_t kMemory = size_t(8) << 30;
constexpr size_t kSharedMemory = 48 * 1024;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

extern "C" {

// ---- the device: the limits of an H100 ----------------------------------------------------------

int cudaGetDeviceCount(int* count) {
  *count = 1;
  return kSuccess;
}

int cudaGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}

int cudaSetDevice(int) { return kSuccess; }

int cudaDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case kMaxThreadsPerBlock:
    case kMaxBlockDimX:
    case kMaxBlockDimY: *value = 1024; break;
    case kMaxBlockDimZ: *value = 64; break;
    case kMaxGridDimX: *value = 2147483647; break;
    case kMaxGridDimY:
    case kMaxGridDimZ: *value = 65535; break;
    case kWarpSize: *value = 32; break;
    case kMaxSharedMemoryPerBlock: *value = (int)kSharedMemory; break;
    case kMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case kMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
    case kMaxRegistersPerBlock: *value = 65536; break;
    case kMaxThreadsPerMultiProcessor: *value = 2048; break;
    case kMultiProcessorCount: *value = 132; break;
    case kClockRate: *value = 1785000; break;
    case kL2CacheSize: *value = 50 << 20; break;
    case kComputeCapabilityMajor: *value = 9; break;
    default: *value = 0;
  }
  return kSuccess;
}

int cudaGetDeviceProperties(DevicePropertiesHead* properties, int) {
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "CPU simulation of a CUDA device");
  properties->total_global_memory = kMemory;
  properties->shared_memory_per_block = kSharedMemory;
  return kSuccess;
}

// ---- memory -------------------------------------------------------------------------------------

int cudaMalloc(void** address, size_t size) {
  *address = cusim_allocate(size);
  return *address == nullptr ? kOutOfMemory : kSuccess;
}

int cudaMallocHost(void** address, size_t size) { return cudaMalloc(address, size); }
int cudaFree(void* address) { return cusim_release(address) ? kSuccess : kInvalidValue; }
int cudaFreeHost(void* address) { return cudaFree(address); }

int cudaMemGetInfo(size_t* available, size_t* total) {
  *available = *total = kMemory;
  return kSuccess;
}

int cudaMemcpyAsync(void* to, const void* from, size_t size, int, void*) {
  memmove(to, from, size);
  return kSuccess;
}

int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void*) {
  memmove(to, from, size);
  return kSuccess;
}

// ---- errors -------------------------------------------------------------------------------------

int cudaGetLastError() { return kSuccess; }
int cudaPeekAtLastError() { return kSuccess; }

const char* cudaGetErrorName(int status) {
  static thread_local char text[32];
  snprintf(text, sizeof text, "CUDA error %d", status);
  return text;
}

const char* cudaGetErrorString(int status) { return cudaGetErrorName(status); }

// ---- streams and graphs -------------------------------------------------------------------------

int cudaStreamCreate(void** stream) {
  *stream = new char;
  return kSuccess;
}

int cudaStreamCreateWithFlags(void** stream, unsigned) { return cudaStreamCreate(stream); }

int cudaStreamDestroy(void* stream) {
  delete (char*)stream;
  return kSuccess;
}

int cudaStreamSynchronize(void*) { return kSuccess; }
int cudaStreamWaitEvent(void*, void*, unsigned) { return kSuccess; }
int cudaStreamBeginCapture(void*, int) { return kNotSupported; }
int cudaStreamEndCapture(void*, void**) { return kNotSupported; }
int cudaGraphInstantiate(void**, void*, unsigned long long) { return kNotSupported; }
int cudaGraphLaunch(void*, void*) { return kNotSupported; }
int cudaGraphDestroy(void*) { return kNotSupported; }
int cudaGraphExecDestroy(void*) { return kNotSupported; }

// ---- events: the time of day --------------------------------------------------------------------

int cudaEventCreate(void** event) {
  *event = new double(0);
  return kSuccess;
}

int cudaEventDestroy(void* event) {
  delete (double*)event;
  return kSuccess;
}

int cudaEventRecord(void* event, void*) {
  *(double*)event = now();
  return kSuccess;
}

int cudaEventSynchronize(void*) { return kSuccess; }

int cudaEventElapsedTime(float* milliseconds, void* from, void* to) {
  *milliseconds = (float)((*(double*)to - *(double*)from) * 1e3);
  return kSuccess;
}

}  // extern "C"
