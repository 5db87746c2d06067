// Device memory: host memory that only kernels and copies can reach, and pinned memory of the host.
//
// The address of an allocation, which the host holds, leads nowhere: a host that follows it faults,
// as on a device, and is told why. Kernels get the address of the bytes, a fixed way behind it.
// Pinned memory is the host's, but not while a copy or a kernel may still be using it: between
// their launch and the next synchronisation the host may not look at it.

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime.h"

namespace cusim {
namespace {

struct Allocation {
  size_t size;      // asked for
  size_t length;    // of the bytes, with room around them
  uintptr_t bytes;  // where kernels and copies find them; the same address where it is pinned
  bool pinned;
  int access;       // what the host may do with it; changes with pinned memory
};

std::mutex mutex;
std::map<uintptr_t, Allocation> by_address;
std::map<uintptr_t, uintptr_t> by_bytes;  // bytes -> address
bool unsynchronised = false;

// Room after each allocation, so that an index past its end lies in no allocation.
constexpr size_t kGap = 512;
constexpr size_t kAlignment = 256;  // what cudaMalloc promises, and no more
constexpr size_t kHostPage = 4096;
// From this size on, an allocation holds zeros instead of rubbish, and takes no memory but the pages
// that are written: arrays of more than 2^31 elements, of which a test looks at the ends.
constexpr size_t kSparse = (size_t)1 << 26;

// The allocation that an address of the host lies in, or null.
Allocation* find(uintptr_t address, uintptr_t& begin) {
  auto after = by_address.upper_bound(address);
  if (after == by_address.begin()) return nullptr;
  --after;
  begin = after->first;
  return address < begin + after->second.size + kGap ? &after->second : nullptr;
}

void let_host(uintptr_t begin, Allocation& allocation, int access) {
  mprotect((void*)(begin - begin % kHostPage), allocation.length, access);
  allocation.access = access;
}

// ---- a host that reads where it must not -------------------------------------------------------

struct sigaction before;

// A number in decimal, where nothing may be allocated.
char* put(char* at, const char* text) {
  while (*text != '\0') *at++ = *text++;
  return at;
}
char* put(char* at, size_t number) {
  char digits[24];
  int count = 0;
  do digits[count++] = (char)('0' + number % 10);
  while ((number /= 10) != 0);
  while (count > 0) *at++ = digits[--count];
  return at;
}

void on_fault(int, siginfo_t* info, void*) {
  // Whoever was there before gets the fault when the instruction is run again.
  sigaction(SIGSEGV, &before, nullptr);
  if (!mutex.try_lock()) return;
  uintptr_t begin = 0;
  const Allocation* found = find((uintptr_t)info->si_addr, begin);
  if (found != nullptr) {
    char text[400], *at = text;
    at = put(at, "cusim: the host reads or writes ");
    at = put(at, found->pinned ? "pinned" : "device");
    at = put(at, " memory, at byte ");
    at = put(at, (uintptr_t)info->si_addr - begin);
    at = put(at, " of ");
    at = put(at, found->size);
    at = put(at, found->pinned ? ", before the stream that uses it is synchronised\n"
                               : ": copy it to the host, and synchronise the stream\n");
    (void)!write(2, text, at - text);
  }
  mutex.unlock();
}

// At the first allocation: later than whoever else installs a handler, and passes on what it gets.
void watch_faults() {
  static bool watching = false;
  if (watching) return;
  watching = true;
  struct sigaction action = {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &before);
}

}  // namespace

// Fresh memory holds a pattern that depends on the seed: a kernel that reads what nobody wrote
// gives different results under different seeds.  As floats: a NaN, a large negative number, a
// large positive number.
unsigned char poison_of(unsigned seed) {
  const unsigned char patterns[] = {0xff, 0xc7, 0x47};
  return patterns[seed % 3];
}

void* allocate(size_t size, unsigned char poison, bool pinned) {
  std::lock_guard<std::mutex> lock(mutex);
  watch_faults();
  size_t length = (kAlignment + size + kGap + kHostPage - 1) / kHostPage * kHostPage;
  // What the host holds the address of, and behind it what kernels use.
  size_t reserved = pinned ? length : 2 * length;
  void* region = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      -1, 0);
  if (region == MAP_FAILED) return nullptr;
  uintptr_t address = (uintptr_t)region + kAlignment;
  uintptr_t bytes = pinned ? address : address + length;
  if (mprotect((void*)(bytes - kAlignment), length, PROT_READ | PROT_WRITE) != 0) {
    munmap(region, reserved);
    return nullptr;
  }
  if (length < kSparse) std::memset((void*)(bytes - kAlignment), poison, length);
  int access = pinned ? PROT_READ | PROT_WRITE : PROT_NONE;
  by_address[address] = {size, length, bytes, pinned, access};
  by_bytes[bytes] = address;
  return (void*)address;
}

bool release(void* address) {
  if (address == nullptr) return true;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = by_address.find((uintptr_t)address);
  if (found == by_address.end()) return false;
  const Allocation& allocation = found->second;
  by_bytes.erase(allocation.bytes);
  munmap((void*)((uintptr_t)address - kAlignment),
         allocation.pinned ? allocation.length : 2 * allocation.length);
  by_address.erase(found);
  return true;
}

bool is_device_memory(uintptr_t bytes, size_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  auto after = by_bytes.upper_bound(bytes);
  if (after == by_bytes.begin()) return false;
  --after;
  return bytes + size <= after->first + by_address[after->second].size;
}

void* bytes_at(const void* address) {
  std::lock_guard<std::mutex> lock(mutex);
  uintptr_t begin = 0;
  const Allocation* found = find((uintptr_t)address, begin);
  return found == nullptr ? nullptr : (void*)(found->bytes + ((uintptr_t)address - begin));
}

bool reaches_past_its_end(const void* address, size_t size) {
  std::lock_guard<std::mutex> lock(mutex);
  uintptr_t begin = 0;
  const Allocation* found = find((uintptr_t)address, begin);
  return found != nullptr && (uintptr_t)address + size > begin + found->size;
}

// ---- pinned memory, between a launch and a synchronisation --------------------------------------

StreamWork::StreamWork() {
  std::lock_guard<std::mutex> lock(mutex);
  if (!unsynchronised) return;
  for (auto& [begin, allocation] : by_address)
    if (allocation.pinned && allocation.access != (PROT_READ | PROT_WRITE))
      mprotect((void*)(begin - begin % kHostPage), allocation.length, PROT_READ | PROT_WRITE);
}

StreamWork::~StreamWork() {
  std::lock_guard<std::mutex> lock(mutex);
  if (!unsynchronised) return;
  for (auto& [begin, allocation] : by_address)
    if (allocation.pinned) let_host(begin, allocation, allocation.access);
}

void StreamWork::uses(const void* address, bool writes) {
  std::lock_guard<std::mutex> lock(mutex);
  uintptr_t begin = 0;
  Allocation* found = find((uintptr_t)address, begin);
  if (found == nullptr || !found->pinned) return;
  // The host may read what is only read.
  found->access &= writes ? PROT_NONE : PROT_READ;
  unsynchronised = true;
}

void synchronise() {
  std::lock_guard<std::mutex> lock(mutex);
  if (!unsynchronised) return;
  for (auto& [begin, allocation] : by_address)
    if (allocation.pinned) let_host(begin, allocation, PROT_READ | PROT_WRITE);
  unsynchronised = false;
}

}  // namespace cusim
