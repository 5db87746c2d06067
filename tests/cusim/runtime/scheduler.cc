// Runs a grid: blocks one after the other, the threads of a block as fibers of the calling thread.
//
// A fiber runs until it waits at a barrier or ends.  When none can run, the scheduler completes the
// barriers whose threads have all come; if that frees nobody, the kernel would hang on a device,
// and the launch fails with the reason.

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "fiber.h"
#include "runtime.h"

extern "C" {
__thread cusim::Dim cusim_thread_idx, cusim_block_idx, cusim_block_dim, cusim_grid_dim;
}

#if defined(__x86_64__)
__asm__(
    ".text\n"
    ".globl cusim_switch\n"
    ".type cusim_switch,@function\n"
    "cusim_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp,(%rdi)\n"
    "  movq %rsi,%rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size cusim_switch,.-cusim_switch\n");
#endif

namespace cusim {
namespace {

enum class State { kReady, kAtBlockBarrier, kAtWarp, kDone };

struct Thread {
  Fiber fiber;
  Dim index;
  int linear;
  State state;
  int line;  // of the barrier or warp operation it waits at
  // The warp operation it waits in, and what came of it.
  int operation;
  unsigned mask;
  uint64_t value;
  int source_lane;
  uint64_t result;
};

// Enough for a kernel with a few thousand local elements; the word at its end tells an overflow.
constexpr size_t kStack = 64 * 1024;
constexpr uint64_t kCanary = 0x6375736963616e61;

char* stacks = nullptr;
std::vector<Thread> threads;
Fiber scheduler;
Thread* current = nullptr;
unsigned block_number = 0;
unsigned char poison = 0;
const Launch* launch = nullptr;
std::string failure;

// The first stack's worth of the area is spare, for what overflows thread 0's.
constexpr size_t kStackArea = (kMaxThreads + 1) * kStack;
char* stack_of(int linear) { return stacks + (size_t)(linear + 1) * kStack; }

void wait(State state) {
  current->state = state;
  switch_fiber(current->fiber, scheduler);
}

void thread_entry() {
  launch->kernel->call(launch->arguments);
  wait(State::kDone);
  __builtin_unreachable();
}

// `{line:N}` is turned into the number and the text of the source line on the way to the user.
std::string at_line(int line) { return "{line:" + std::to_string(line) + "}"; }

std::string name(const Thread& thread) {
  Dim i = thread.index;
  return "thread (" + std::to_string(i.x) + "," + std::to_string(i.y) + "," + std::to_string(i.z) +
         ")";
}

std::string in_hex(unsigned mask) {
  char text[16];
  snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

const char* operation_name(int operation) {
  return operation == kShuffle ? "a shuffle" : operation == kBallot ? "a vote" : "__syncwarp";
}

// Completes the warp operation that `first` waits in, if all the lanes of its mask have come.
bool complete_warp_operation(Thread& first) {
  int base = first.linear / kWarp * kWarp;
  int lanes = std::min<int>(kWarp, (int)threads.size() - base);
  std::vector<Thread*> members;
  for (int lane = 0; lane < lanes; ++lane) {
    if ((first.mask >> lane & 1) == 0) continue;
    Thread& other = threads[base + lane];
    if (other.state == State::kDone) continue;  // an exited thread is waited for by nobody
    bool same_place = other.state == State::kAtWarp && other.mask == first.mask &&
                      other.line == first.line && other.operation == first.operation;
    if (!same_place) return false;
    members.push_back(&other);
  }
  if (first.operation == kSyncWarp && launch->race) race::warp_barrier(base / kWarp, first.mask);
  uint64_t ballot = 0;
  for (Thread* member : members)
    ballot |= (uint64_t)(member->value != 0) << (member->linear - base);
  for (Thread* member : members) {
    member->result = member->value;
    if (first.operation == kBallot) member->result = ballot;
    if (first.operation == kShuffle && member->source_lane != member->linear - base) {
      // A lane that does not take part gives no defined value.
      std::memset(&member->result, poison, sizeof member->result);
      for (Thread* source : members)
        if (source->linear - base == member->source_lane) member->result = source->value;
    }
    member->state = State::kReady;
  }
  return true;
}

std::string why_stuck(int done, int at_block_barrier) {
  for (const Thread& thread : threads) {
    if (thread.state != State::kAtWarp) continue;
    int base = thread.linear / kWarp * kWarp;
    for (int lane = 0; lane < kWarp && base + lane < (int)threads.size(); ++lane) {
      const Thread& other = threads[base + lane];
      if ((thread.mask >> lane & 1) == 0 || other.state == State::kDone) continue;
      std::string here = name(thread) + " waits in " + operation_name(thread.operation) +
                         " with mask " + in_hex(thread.mask) + " at " + at_line(thread.line);
      std::string there = name(other) + ", which the mask names, ";
      if (other.state == State::kAtBlockBarrier)
        return "mismatched warp mask: " + here + "; " + there + "waits in __syncthreads() at " +
               at_line(other.line);
      if (other.mask != thread.mask || other.line != thread.line ||
          other.operation != thread.operation)
        return "mismatched warp mask: " + here + "; " + there + "waits in " +
               operation_name(other.operation) + " with mask " + in_hex(other.mask) + " at " +
               at_line(other.line);
    }
  }
  return "deadlock: " + std::to_string(done) + " threads ended, " +
         std::to_string(at_block_barrier) + " of " + std::to_string(threads.size()) +
         " wait in __syncthreads()";
}

// Lets all threads pass the block barrier, or says why they must not.
std::string complete_block_barrier(int done) {
  const Thread* first = nullptr;
  for (const Thread& thread : threads) {
    if (thread.state != State::kAtBlockBarrier) continue;
    if (first == nullptr) first = &thread;
    if (thread.line != first->line)
      return "divergent __syncthreads(): " + name(*first) + " waits at " + at_line(first->line) +
             ", " + name(thread) + " at " + at_line(thread.line);
  }
  if (done != 0)
    return "divergent __syncthreads(): " + std::to_string(done) + " of " +
           std::to_string(threads.size()) + " threads ended before the barrier at " +
           at_line(first->line);
  if (launch->race) race::block_barrier();
  for (Thread& thread : threads) thread.state = State::kReady;
  return "";
}

std::string run_block(std::mt19937& random) {
  std::vector<int> order(threads.size());
  std::iota(order.begin(), order.end(), 0);
  if (launch->seed == 1) std::reverse(order.begin(), order.end());
  for (;;) {
    if (launch->seed > 1) std::shuffle(order.begin(), order.end(), random);
    for (int i : order) {
      if (threads[i].state != State::kReady) continue;
      current = &threads[i];
      cusim_thread_idx = current->index;
      switch_fiber(scheduler, current->fiber);
      current = nullptr;
      if (!failure.empty()) return failure;
      // At once: the neighbour whose stack was overwritten must not run any more.
      if (std::memcmp(stack_of(i), &kCanary, sizeof kCanary) != 0)
        return "stack overflow: the local variables of " + name(threads[i]) + " exceed 64 KiB";
    }
    bool progress = false;
    for (Thread& thread : threads)
      if (thread.state == State::kAtWarp) progress |= complete_warp_operation(thread);
    if (progress) continue;
    int done = 0, at_block_barrier = 0;
    for (const Thread& thread : threads) {
      done += thread.state == State::kDone;
      at_block_barrier += thread.state == State::kAtBlockBarrier;
    }
    if (done == (int)threads.size()) return "";
    if (done + at_block_barrier != (int)threads.size()) return why_stuck(done, at_block_barrier);
    std::string error = complete_block_barrier(done);
    if (!error.empty()) return error;
  }
}

Image find_image(const Kernel& kernel) {
  kernel.shared_anchor();
  struct Search {
    uintptr_t code;
    Image image;
  } search{(uintptr_t)kernel.call, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& search = *(Search*)data;
        uintptr_t low = UINTPTR_MAX, high = 0, shared = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type == PT_LOAD) {
            low = std::min<uintptr_t>(low, info->dlpi_addr + header.p_vaddr);
            high = std::max<uintptr_t>(high, info->dlpi_addr + header.p_vaddr + header.p_memsz);
          }
          if (header.p_type == PT_TLS) shared = header.p_memsz;
        }
        if (search.code < low || search.code >= high) return 0;
        search.image.base = info->dlpi_addr;
        search.image.begin = low;
        search.image.end = high;
        search.image.shared_begin = (uintptr_t)info->dlpi_tls_data;
        search.image.shared_end = search.image.shared_begin + shared;
        return 1;
      },
      &search);
  if (kernel.dynamic_arena != nullptr) search.image.arena_begin = (uintptr_t)kernel.dynamic_arena();
  return search.image;
}

// Shared memory holds rubbish when a block begins.
void poison_shared_memory(const Image& image, unsigned dynamic_shared) {
  uintptr_t begin = image.shared_begin, end = image.shared_end, arena = image.arena_begin;
  if (arena == 0) {
    std::memset((void*)begin, poison, end - begin);
    return;
  }
  std::memset((void*)begin, poison, arena - begin);
  std::memset((void*)arena, poison, dynamic_shared);
  std::memset((void*)(arena + kDynamicArenaBytes), poison, end - arena - kDynamicArenaBytes);
}

std::string check_launch(const Launch& launch, const Image& image) {
  Dim b = launch.block, g = launch.grid;
  size_t count = (size_t)b.x * b.y * b.z;
  std::string shape = "(" + std::to_string(b.x) + "," + std::to_string(b.y) + "," +
                      std::to_string(b.z) + ")";
  if (count == 0 || count > kMaxThreads || b.z > 64)
    return "invalid block size: " + shape + ", at most 1024 threads and 64 in z";
  if (count > launch.kernel->max_threads)
    return "invalid block size: " + shape + " exceeds __launch_bounds__(" +
           std::to_string(launch.kernel->max_threads) + ")";
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
    return "invalid grid size: (" + std::to_string(g.x) + "," + std::to_string(g.y) + "," +
           std::to_string(g.z) + "), each at least 1, at most 2147483647 in x, 65535 in y and z";
  size_t arena = image.arena_begin != 0 ? kDynamicArenaBytes : 0;
  size_t fixed = image.shared_end - image.shared_begin - arena;
  constexpr size_t kPadding = 1088;  // the anchor, and the arena's alignment
  if (fixed > 48 * 1024 + kPadding)
    return "too much static shared memory: " + std::to_string(fixed) + " bytes, at most 49152";
  return "";
}

}  // namespace

int current_thread() { return current == nullptr ? -1 : current->linear; }

unsigned current_block() { return block_number; }

bool on_a_stack(uintptr_t address) {
  return address - (uintptr_t)stacks < kStackArea;
}

void fail(const std::string& message) {
  failure = name(*current) + " " + message;
  wait(State::kDone);
  __builtin_unreachable();
}

std::string run(const Launch& request) {
  Image image = find_image(*request.kernel);
  std::string error = check_launch(request, image);
  if (!error.empty()) return error;
  if (stacks == nullptr)
    stacks = (char*)mmap(nullptr, kStackArea, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  launch = &request;
  poison = poison_of(request.seed);
  failure.clear();
  const Dim b = request.block, g = request.grid;
  cusim_block_dim = b;
  cusim_grid_dim = g;
  threads.assign((size_t)b.x * b.y * b.z, Thread());
  if (request.race) race::begin_launch(image, (unsigned)threads.size(), request.dynamic_shared);

  std::vector<unsigned> blocks((size_t)g.x * g.y * g.z);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::mt19937 random(request.seed);
  if (request.seed == 1) std::reverse(blocks.begin(), blocks.end());
  if (request.seed > 1) std::shuffle(blocks.begin(), blocks.end(), random);

  for (unsigned block : blocks) {
    block_number = block;
    cusim_block_idx = {block % g.x, block / g.x % g.y, block / g.x / g.y};
    for (int i = 0; i < (int)threads.size(); ++i) {
      Thread& thread = threads[i];
      thread.linear = i;
      thread.index = {i % b.x, i / b.x % b.y, i / b.x / b.y};
      thread.state = State::kReady;
      std::memcpy(stack_of(i), &kCanary, sizeof kCanary);
      thread.fiber.prepare(stack_of(i), kStack, thread_entry);
    }
    poison_shared_memory(image, request.dynamic_shared);
    if (request.race) race::begin_block();
    async_copy::begin_block(image, request);
    error = run_block(random);
    if (request.race) race::end_block();
    if (!error.empty()) {
      error = "block (" + std::to_string(cusim_block_idx.x) + "," +
              std::to_string(cusim_block_idx.y) + "," + std::to_string(cusim_block_idx.z) +
              "): " + error;
      break;
    }
  }
  std::string races = request.race ? race::end_launch() : "";
  if (!races.empty()) error += (error.empty() ? "" : "\n") + races;
  launch = nullptr;
  return error;
}

}  // namespace cusim

// ---- what kernels call --------------------------------------------------------------------------

using cusim::current;

extern "C" int cusim_lane() { return current->linear % cusim::kWarp; }

extern "C" void cusim_block_barrier(int line) {
  current->line = line;
  cusim::wait(cusim::State::kAtBlockBarrier);
}

extern "C" uint64_t cusim_warp(int operation, unsigned mask, uint64_t value, int source_lane,
                               int line) {
  if ((mask >> cusim_lane() & 1) == 0)
    cusim::fail(std::string("is not in the mask ") + cusim::in_hex(mask) + " of " +
                cusim::operation_name(operation) + " that it calls at " + cusim::at_line(line) +
                ": mismatched warp mask");
  current->operation = operation;
  current->mask = mask;
  current->value = value;
  current->source_lane = source_lane;
  current->line = line;
  cusim::wait(cusim::State::kAtWarp);
  return current->result;
}
