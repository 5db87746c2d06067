// The data-race detector.
//
// g++ -fsanitize=thread calls a hook for each load and store; the hooks here keep, for each cell of
// memory, the last plain write, and the reads and atomic accesses that may still race, and report
// two accesses of which one is a write, one is plain, and neither happens before the other.  What orders accesses: the program order of a thread, a block
// barrier, and __syncwarp among the lanes of its mask.  A shuffle orders nothing, as in CUDA.
//
// An asynchronous copy writes from its beginning until its thread has waited for it: any access to
// its target in between is a race, by that thread too.
//
// Accesses of one kind by several lanes of a warp, none of which is ordered, are kept as one with
// their lanes: a later access may be ordered after some of them only.
//
// The order is exact within a warp (vector clocks), and exact between warps (a count of the block
// barriers).  Blocks are ordered by a release that another block acquires: what the releasing
// thread did before it, and its block before the last barrier, happens before what the acquiring
// thread does after it, and its block after the next barrier.

#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "runtime.h"

namespace cusim {
namespace {

constexpr uint32_t kIsLine = 0x80000000u;

struct Access {
  uint32_t block = 0;
  int16_t thread = -1;  // -1: none
  bool atomic = false;
  bool write = false;
  uint32_t lanes = 0;  // of its warp: its own, and those that did the same at the same clock
  uint32_t epoch = 0;  // block barriers passed before it
  uint32_t clock = 0;  // warp barriers that its thread passed before it
  uint32_t code = 0;   // its address in the kernel's image, or kIsLine and its line

  bool exists() const { return thread >= 0; }
  int warp() const { return thread / kWarp; }
};

struct Cell {
  Access write;       // the last plain one
  Access reads[2];    // plain ones since
  Access atomics[2];  // of both kinds since
};

// Shadow of 1024 bytes of memory.  Cells are four bytes wide until something narrower or unaligned
// is accessed in the page: neighbouring bytes may belong to different threads.
constexpr uintptr_t kPage = 1024;
struct Page {
  unsigned width = 4;
  std::vector<Cell> cells = std::vector<Cell>(kPage / 4);

  void refine() {
    std::vector<Cell> bytes(kPage);
    for (size_t i = 0; i < kPage; ++i) bytes[i] = cells[i / 4];
    cells.swap(bytes);
    width = 1;
  }
};

bool active = false;
Image image;
unsigned thread_count, dynamic_bytes;
uint32_t epoch;
std::vector<std::array<uint32_t, kWarp>> clocks;  // of each thread: what it knows of its warp
std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
// Of other blocks, what is ordered before: of (block, thread), or (block, -1) for all its threads,
// the accesses before that many barriers.
using Known = std::map<std::pair<uint32_t, int>, uint32_t>;
Known known_by_block;
std::unordered_map<int, Known> known_by_thread;  // beside what its block knows
std::unordered_map<uintptr_t, Known> released;   // by the store to that address
uintptr_t last_key = 0;
Page* last_page = nullptr;
std::unordered_map<uintptr_t, Access> pending;  // words that asynchronous copies still write
std::set<std::tuple<int, uint32_t, uint32_t>> reported;
std::string report_text;
size_t race_count;
constexpr size_t kMaxReports = 8;

Page& page_at(uintptr_t address) {
  uintptr_t key = address / kPage;
  if (last_page != nullptr && last_key == key) return *last_page;
  auto& slot = pages[key];
  if (slot == nullptr) slot = std::make_unique<Page>();
  last_key = key;
  last_page = slot.get();
  return *slot;
}

bool in_shared(uintptr_t address) {
  return address >= image.shared_begin && address < image.shared_end;
}

// Whether an access of another block is ordered before: that of every lane.
bool is_known(const Known& known, const Access& earlier) {
  auto holds = [&](int thread) {
    auto found = known.find({earlier.block, thread});
    return found != known.end() && earlier.epoch < found->second;
  };
  if (holds(-1)) return true;
  for (uint32_t rest = earlier.lanes; rest != 0; rest &= rest - 1)
    if (!holds(earlier.warp() * kWarp + __builtin_ctz(rest))) return false;
  return true;
}

void merge(Known& into, const Known& from) {
  for (const auto& [who, barriers] : from) into[who] = std::max(into[who], barriers);
}

// Of one warp and epoch: the lanes of the earlier access that are not before the later one.
uint32_t unordered_lanes(const Access& earlier, const Access& later) {
  uint32_t found = 0;
  for (uint32_t rest = earlier.lanes; rest != 0; rest &= rest - 1) {
    int lane = __builtin_ctz(rest);
    if (lane != later.thread % kWarp && clocks[later.thread][lane] <= earlier.clock)
      found |= 1u << lane;
  }
  return found;
}

bool happens_before(const Access& earlier, const Access& later) {
  if (earlier.block != later.block) {
    if (is_known(known_by_block, earlier)) return true;
    auto own = known_by_thread.find(later.thread);
    return own != known_by_thread.end() && is_known(own->second, earlier);
  }
  if (earlier.epoch < later.epoch) return true;
  return earlier.warp() == later.warp() && unordered_lanes(earlier, later) == 0;
}

bool conflict(const Access& earlier, const Access& later) {
  return earlier.exists() && (earlier.write || later.write) && !(earlier.atomic && later.atomic) &&
         !happens_before(earlier, later);
}

// `{pc:A}` and `{line:N}` become source lines on the way to the user.
std::string place(uint32_t code) {
  char text[32];
  if (code & kIsLine)
    snprintf(text, sizeof text, "{line:%u}", code & ~kIsLine);
  else
    snprintf(text, sizeof text, "{pc:0x%x}", code);
  return text;
}

void report(uintptr_t address, const Access& earlier, const Access& later) {
  enum Kind { kWriteWrite, kWriteRead, kReadWrite };
  Kind kind = !earlier.write ? kReadWrite : later.write ? kWriteWrite : kWriteRead;
  ++race_count;
  if (!reported.insert({kind, earlier.code, later.code}).second || reported.size() > kMaxReports)
    return;
  int thread = earlier.thread;
  if (earlier.block == later.block && earlier.warp() == later.warp()) {
    uint32_t lanes = unordered_lanes(earlier, later);
    if (lanes != 0) thread = earlier.warp() * kWarp + __builtin_ctz(lanes);
  }
  const char* verbs[][2] = {{"wrote", "writes"}, {"wrote", "reads"}, {"read", "writes"}};
  const char* names[] = {"write-write", "write-read", "read-write"};
  char text[512];
  snprintf(text, sizeof text,
           "%s race on %s memory: thread %d of block %u %s at %s, thread %d of block %u %s at %s\n",
           names[kind], in_shared(address) ? "shared" : "global", thread, earlier.block,
           verbs[kind][0], place(earlier.code).c_str(), later.thread, later.block, verbs[kind][1],
           place(later.code).c_str());
  report_text += text;
}

// Keeps two accesses such that a later one that races with any races with one of them.
void remember(Access (&slots)[2], const Access& access) {
  // A read does not stand for a write: with reads it does not race.
  for (Access& slot : slots) {
    if (slot.exists() && access.write >= slot.write && happens_before(slot, access)) {
      slot = access;
      return;
    }
  }
  for (Access& slot : slots) {
    bool alike = slot.exists() && slot.block == access.block && slot.warp() == access.warp() &&
                 slot.epoch == access.epoch && slot.clock == access.clock;
    if (alike && slot.write == access.write) {
      slot.lanes |= access.lanes;
      return;
    }
  }
  for (Access& slot : slots) {
    if (!slot.exists()) {
      slot = access;
      return;
    }
  }
  // Two accesses of different blocks leave none that both happen before, unless it acquired from
  // both; nor, within a block, two of different warps.
  bool one_block = slots[0].block == slots[1].block;
  bool other_block = access.block != slots[0].block;
  bool one_warp = slots[0].warp() == slots[1].warp();
  if (one_block && (other_block || (one_warp && access.warp() != slots[0].warp())))
    slots[1] = access;
}

void visit(Cell& cell, uintptr_t address, const Access& access) {
  for (Access* slot : {&cell.write, &cell.reads[0], &cell.reads[1], &cell.atomics[0],
                       &cell.atomics[1]}) {
    if (!conflict(*slot, access)) continue;
    report(address, *slot, access);
    *slot = Access();
  }
  if (access.atomic) {
    remember(cell.atomics, access);
  } else if (!access.write) {
    remember(cell.reads, access);
  } else {
    // All else happens before it, or was reported: who races with that races with this write.
    cell = Cell();
    cell.write = access;
  }
}

// Whether a kernel may touch these bytes at all; memory that needs no watching counts as legal.
void check_bounds(uintptr_t address, size_t size, bool write, uint32_t code) {
  bool legal;
  if (in_shared(address)) {
    uintptr_t arena = image.arena_begin;
    bool in_arena = arena != 0 && address >= arena && address < arena + kDynamicArenaBytes;
    uintptr_t end = in_arena ? arena + dynamic_bytes : image.shared_end;
    legal = address + size <= end;
  } else {
    legal = is_device_memory(address, size);
  }
  if (legal) return;
  char text[160];
  snprintf(text, sizeof text, "makes an out-of-bounds %s of %zu bytes at %s",
           write ? "write" : "read", size, place(code).c_str());
  fail(text);
}

// What the compiler's own check leaves out: a constant distance from an aligned pointer.
void check_alignment(const void* pointer, size_t alignment, bool write, uint32_t code) {
  if (!active || (uintptr_t)pointer % alignment == 0 || current_thread() < 0) return;
  char text[160];
  snprintf(text, sizeof text, "makes a misaligned %s at %s: its address is no multiple of %zu",
           write ? "write" : "read", place(code).c_str(), alignment);
  fail(text);
}

// The code address is a hook's return address; one less lies within the call.
uint32_t code_of(const void* return_address) {
  return (uint32_t)((uintptr_t)return_address - 1 - image.base);
}

void access(const void* pointer, size_t size, bool write, bool atomic, uint32_t code) {
  if (!active || size == 0) return;
  uintptr_t address = (uintptr_t)pointer;
  int thread = current_thread();
  if (thread < 0 || on_a_stack(address)) return;
  if (address >= image.begin && address < image.end) return;  // constants of the kernel
  for (const Dim* builtin : {&cusim_thread_idx, &cusim_block_idx, &cusim_block_dim,
                             &cusim_grid_dim})
    if (address - (uintptr_t)builtin < sizeof(Dim)) return;
  Access now;
  now.code = code;
  check_bounds(address, size, write, now.code);
  now.block = current_block();
  now.thread = (int16_t)thread;
  now.atomic = atomic;
  now.write = write;
  now.lanes = 1u << thread % kWarp;
  now.epoch = epoch;
  now.clock = clocks[thread][thread % kWarp];
  if (!pending.empty()) {
    for (uintptr_t word = address / 4; word <= (address + size - 1) / 4; ++word) {
      auto found = pending.find(word);
      if (found != pending.end()) report(address, found->second, now);
    }
  }
  for (uintptr_t at = address; at < address + size;) {
    Page& page = page_at(at);
    if (page.width == 4 && (at % 4 != 0 || address + size - at < 4)) page.refine();
    visit(page.cells[at % kPage / page.width], at, now);
    at += page.width;
  }
}

}  // namespace

namespace race {

void begin_launch(const Image& kernel_image, unsigned threads, unsigned dynamic_shared) {
  image = kernel_image;
  thread_count = threads;
  dynamic_bytes = dynamic_shared;
  pages.clear();
  last_page = nullptr;
  reported.clear();
  report_text.clear();
  race_count = 0;
  released.clear();
}

void begin_block() {
  epoch = 0;
  pending.clear();
  known_by_block.clear();
  known_by_thread.clear();
  clocks.assign(thread_count, {});
  active = true;
}

void end_block() {
  active = false;
  // Shared memory does not outlive the block.
  last_page = nullptr;
  for (uintptr_t key = image.shared_begin / kPage; key * kPage < image.shared_end; ++key)
    pages.erase(key);
}

void block_barrier() {
  ++epoch;
  for (const auto& [thread, known] : known_by_thread) merge(known_by_block, known);
  known_by_thread.clear();
}

namespace {

// What belongs to one block: its place in the order, and the shadow of its shared memory.
struct Stopped {
  uint32_t epoch;
  std::vector<std::array<uint32_t, kWarp>> clocks;
  Known known_by_block;
  std::unordered_map<int, Known> known_by_thread;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> shared;
  std::unordered_map<uintptr_t, Access> pending;
};

}  // namespace

std::shared_ptr<void> stop_block() {
  active = false;
  auto block = std::make_shared<Stopped>();
  block->epoch = epoch;
  block->clocks.swap(clocks);
  block->known_by_block.swap(known_by_block);
  block->known_by_thread.swap(known_by_thread);
  block->pending.swap(pending);
  last_page = nullptr;
  for (uintptr_t key = image.shared_begin / kPage; key * kPage < image.shared_end; ++key) {
    auto found = pages.find(key);
    if (found == pages.end()) continue;
    block->shared[key] = std::move(found->second);
    pages.erase(found);
  }
  return block;
}

void resume_block(const std::shared_ptr<void>& stopped) {
  auto& block = *(Stopped*)stopped.get();
  epoch = block.epoch;
  clocks.swap(block.clocks);
  known_by_block.swap(block.known_by_block);
  known_by_thread.swap(block.known_by_thread);
  pending.swap(block.pending);
  last_page = nullptr;
  for (auto& [key, page] : block.shared) pages[key] = std::move(page);
  active = true;
}

void ordered_access(const void* address, size_t size, bool write, bool orders, int line) {
  if (!active) return;
  access(address, size, write, true, kIsLine | (uint32_t)line);
  if (!orders) return;
  int thread = current_thread();
  if (!write) {
    auto found = released.find((uintptr_t)address);
    if (found != released.end()) merge(known_by_thread[thread], found->second);
    return;
  }
  Known known = known_by_block;
  auto own = known_by_thread.find(thread);
  if (own != known_by_thread.end()) merge(known, own->second);
  known[{current_block(), -1}] = epoch;
  known[{current_block(), thread}] = epoch + 1;
  released[(uintptr_t)address] = std::move(known);
}

void warp_barrier(int warp, unsigned mask) {
  size_t base = (size_t)warp * kWarp;
  std::array<uint32_t, kWarp> joined = {};
  for (size_t lane = 0; lane < kWarp && base + lane < clocks.size(); ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    ++clocks[base + lane][lane];
    for (size_t i = 0; i < kWarp; ++i) joined[i] = std::max(joined[i], clocks[base + lane][i]);
  }
  for (size_t lane = 0; lane < kWarp && base + lane < clocks.size(); ++lane)
    if (mask >> lane & 1) clocks[base + lane] = joined;
}

void begin_copy(void* to, const void* from, size_t size, int line) {
  access(from, size, false, false, kIsLine | (uint32_t)line);
  access(to, size, true, false, kIsLine | (uint32_t)line);
  Access writer;
  writer.block = current_block();
  writer.thread = (int16_t)current_thread();
  writer.write = true;
  writer.code = kIsLine | (uint32_t)line;
  for (uintptr_t word = (uintptr_t)to / 4; word < ((uintptr_t)to + size) / 4; ++word)
    pending[word] = writer;
}

void end_copy(void* to, size_t size, int line) {
  for (uintptr_t word = (uintptr_t)to / 4; word < ((uintptr_t)to + size) / 4; ++word)
    pending.erase(word);
  access(to, size, true, false, kIsLine | (uint32_t)line);
}

std::string end_launch() {
  active = false;
  pages.clear();
  last_page = nullptr;
  if (race_count == 0) return "";
  std::string head = std::to_string(race_count) + " data race(s) at " +
                     std::to_string(reported.size()) + " pair(s) of places\n";
  return head + report_text;
}

}  // namespace race
}  // namespace cusim

// ---- the hooks ----------------------------------------------------------------------------------

#define CUSIM_CALLER cusim::code_of(__builtin_return_address(0))

extern "C" void cusim_atomic_access(void* address, size_t size, int line) {
  cusim::require_aligned(address, size, line);
  cusim::access(address, size, true, true, cusim::kIsLine | (uint32_t)line);
  cusim::note_change();
}

#define CUSIM_HOOK(NAME, SIZE, ALIGNMENT, WRITE, ATOMIC)             \
  extern "C" void __tsan_##NAME##SIZE(void* address) {               \
    cusim::check_alignment(address, ALIGNMENT, WRITE, CUSIM_CALLER); \
    cusim::access(address, SIZE, WRITE, ATOMIC, CUSIM_CALLER);       \
  }
// An access of a type that is aligned to less than its size is an "unaligned" one.
#define CUSIM_HOOKS(SIZE)                                      \
  CUSIM_HOOK(read, SIZE, SIZE, false, false)                   \
  CUSIM_HOOK(write, SIZE, SIZE, true, false)                   \
  CUSIM_HOOK(unaligned_read, SIZE, 1, false, false)            \
  CUSIM_HOOK(unaligned_write, SIZE, 1, true, false)            \
  CUSIM_HOOK(volatile_read, SIZE, SIZE, false, true)           \
  CUSIM_HOOK(volatile_write, SIZE, SIZE, true, true)           \
  CUSIM_HOOK(unaligned_volatile_read, SIZE, 1, false, true)    \
  CUSIM_HOOK(unaligned_volatile_write, SIZE, 1, true, true)
CUSIM_HOOKS(1)
CUSIM_HOOKS(2)
CUSIM_HOOKS(4)
CUSIM_HOOKS(8)
CUSIM_HOOKS(16)

extern "C" void __tsan_read_range(void* address, size_t size) {
  cusim::access(address, size, false, false, CUSIM_CALLER);
}

extern "C" void __tsan_write_range(void* address, size_t size) {
  cusim::access(address, size, true, false, CUSIM_CALLER);
}

extern "C" void* __tsan_memcpy(void* to, const void* from, size_t size) {
  cusim::access(from, size, false, false, CUSIM_CALLER);
  cusim::access(to, size, true, false, CUSIM_CALLER);
  return memcpy(to, from, size);
}

extern "C" void* __tsan_memset(void* to, int value, size_t size) {
  cusim::access(to, size, true, false, CUSIM_CALLER);
  return memset(to, value, size);
}

extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}
