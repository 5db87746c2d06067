#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime.h"

namespace cusim {
namespace {

std::mutex mutex;
std::map<uintptr_t, size_t> allocations;  // begin -> size asked for

// Room after each allocation, so that an index past its end lies in no allocation.
constexpr size_t kGap = 512;
constexpr size_t kAlignment = 256;  // what cudaMalloc promises

}  // namespace

// Fresh memory holds a pattern that depends on the seed: a kernel that reads what nobody wrote
// gives different results under different seeds.  As floats: a NaN, a large negative number, a
// large positive number.
unsigned char poison_of(unsigned seed) {
  const unsigned char patterns[] = {0xff, 0xc7, 0x47};
  return patterns[seed % 3];
}

void* allocate(size_t size, unsigned char poison) {
  size_t padded = (size + kGap + kAlignment - 1) / kAlignment * kAlignment;
  void* address = aligned_alloc(kAlignment, padded);
  if (address == nullptr) return nullptr;
  std::memset(address, poison, padded);
  std::lock_guard<std::mutex> lock(mutex);
  allocations[(uintptr_t)address] = size;
  return address;
}

bool release(void* address) {
  if (address == nullptr) return true;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (allocations.erase((uintptr_t)address) == 0) return false;
  }
  free(address);
  return true;
}

bool is_device_memory(uintptr_t address, size_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  auto after = allocations.upper_bound(address);
  if (after == allocations.begin()) return false;
  --after;
  return address + size <= after->first + after->second;
}

}  // namespace cusim
