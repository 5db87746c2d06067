#include <sys/mman.h>

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
// From this size on, an allocation takes no memory but the pages that are written, and holds zeros
// instead of rubbish: arrays of more than 2^31 elements, of which a test looks at the ends.
constexpr size_t kSparse = (size_t)1 << 26;

size_t padded_size(size_t size) {
  return (size + kGap + kAlignment - 1) / kAlignment * kAlignment;
}

void* map_sparse(size_t size) {
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

}  // namespace

// Fresh memory holds a pattern that depends on the seed: a kernel that reads what nobody wrote
// gives different results under different seeds.  As floats: a NaN, a large negative number, a
// large positive number.
unsigned char poison_of(unsigned seed) {
  const unsigned char patterns[] = {0xff, 0xc7, 0x47};
  return patterns[seed % 3];
}

void* allocate(size_t size, unsigned char poison) {
  size_t padded = padded_size(size);
  void* address = padded < kSparse ? aligned_alloc(kAlignment, padded) : map_sparse(padded);
  if (address == nullptr) return nullptr;
  if (padded < kSparse) std::memset(address, poison, padded);
  std::lock_guard<std::mutex> lock(mutex);
  allocations[(uintptr_t)address] = size;
  return address;
}

bool release(void* address) {
  if (address == nullptr) return true;
  size_t padded = 0;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = allocations.find((uintptr_t)address);
    if (found == allocations.end()) return false;
    padded = padded_size(found->second);
    allocations.erase(found);
  }
  if (padded < kSparse)
    free(address);
  else
    munmap(address, padded);
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
