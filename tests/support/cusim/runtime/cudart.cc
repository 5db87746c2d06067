// libcudart.so.13: the part of the runtime interface that libtvm_runtime_cuda.so imports.
//
// There is one device and one stream. Everything is done when the call returns, but the host may not
// look before it has synchronised, if a device would let it look too early.

#include <chrono>
#include <cstdio>
#include <cstring>

#include "abi.h"

// In libcuda.so.1, which keeps the list of allocations.
extern "C" void* cusim_allocate(size_t size, int pinned);
extern "C" int cusim_release(void* address);
extern "C" int cusim_copy(void* to, const void* from, size_t size);
extern "C" void cusim_synchronise();

using namespace cusim;

namespace {

constexpr size_t kMemory = size_t(8) << 30;
constexpr size_t kSharedMemory = 48 * 1024;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How often the host has waited for the stream; an event after the last time may lie ahead.
unsigned long synchronisations = 0;

struct Event {
  double time = 0;
  unsigned long synchronisations_before = 0;
};

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
  *address = cusim_allocate(size, 0);
  return *address == nullptr ? kOutOfMemory : kSuccess;
}

int cudaMallocHost(void** address, size_t size) {
  *address = cusim_allocate(size, 1);
  return *address == nullptr ? kOutOfMemory : kSuccess;
}

int cudaFree(void* address) { return cusim_release(address) ? kSuccess : kInvalidValue; }
int cudaFreeHost(void* address) { return cudaFree(address); }

int cudaMemGetInfo(size_t* available, size_t* total) {
  *available = *total = kMemory;
  return kSuccess;
}

// A copy from or to memory that is not pinned is done when the call returns, as CUDA says.
int cudaMemcpyAsync(void* to, const void* from, size_t size, int, void*) {
  return cusim_copy(to, from, size) ? kSuccess : kInvalidValue;
}

int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void*) {
  return cusim_copy(to, from, size) ? kSuccess : kInvalidValue;
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

int cudaStreamSynchronize(void*) {
  ++synchronisations;
  cusim_synchronise();
  return kSuccess;
}

int cudaStreamWaitEvent(void*, void*, unsigned) { return kSuccess; }
int cudaStreamBeginCapture(void*, int) { return kNotSupported; }
int cudaStreamEndCapture(void*, void**) { return kNotSupported; }
int cudaGraphInstantiate(void**, void*, unsigned long long) { return kNotSupported; }
int cudaGraphLaunch(void*, void*) { return kNotSupported; }
int cudaGraphDestroy(void*) { return kNotSupported; }
int cudaGraphExecDestroy(void*) { return kNotSupported; }

// ---- events: the time of day --------------------------------------------------------------------

int cudaEventCreate(void** event) {
  *event = new Event();
  return kSuccess;
}

int cudaEventDestroy(void* event) {
  delete (Event*)event;
  return kSuccess;
}

int cudaEventRecord(void* event, void*) {
  *(Event*)event = {now(), synchronisations};
  return kSuccess;
}

// What was recorded before it is done, too.
int cudaEventSynchronize(void*) { return cudaStreamSynchronize(nullptr); }

int cudaEventElapsedTime(float* milliseconds, void* from, void* to) {
  const auto &first = *(Event*)from, &last = *(Event*)to;
  if (last.synchronisations_before == synchronisations) return kNotReady;
  *milliseconds = (float)((last.time - first.time) * 1e3);
  return kSuccess;
}

}  // extern "C"
