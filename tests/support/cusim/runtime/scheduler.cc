// Runs a grid: the threads of a block as fibers of the calling thread, and blocks one after the
// other, unless they wait for each other.
//
// A fiber runs until it waits at a barrier or ends.  When none can run, the scheduler completes the
// barriers whose threads have all come; if that frees nobody, the kernel would hang on a device,
// and the launch fails with the reason.
//
// A block whose threads poll memory stops when nothing that they look at can change without others,
// and (by the seed) where it hands something to them.  Few blocks are held at a time, as on a
// device; when all of those wait for what none of them writes, that is a deadlock.

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>
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

enum class State { kReady, kAtBlockBarrier, kAtWarp, kPolling, kDone };

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
  // What it has looked at since memory changed, and how often that had changed by then.
  std::vector<const void*> polled;
  uint64_t seen;
};

// A block that has begun and that others run instead of.
struct Stopped {
  unsigned number;
  Dim index;
  int slot;
  std::vector<Thread> threads;
  std::vector<char> shared;
  std::shared_ptr<void> watched, stores, copies;
  uint64_t seen;  // as above, if all its threads wait
};

// Enough for a kernel with a few thousand local elements; the word at its end tells an overflow.
constexpr size_t kStack = 64 * 1024;
constexpr uint64_t kCanary = 0x6375736963616e61;

char* stacks = nullptr;
std::vector<Thread> threads;
int slot = 0;  // whose stacks the threads of the running block have
Fiber scheduler;
Thread* current = nullptr;
unsigned block_number = 0;
unsigned char poison = 0;
const Launch* launch = nullptr;
std::string failure;
uint64_t changes = 0;  // of memory that blocks may poll
bool stop_requested = false;
unsigned most_blocks = 1;
std::mt19937 switches;
constexpr uint64_t kNever = UINT64_MAX;
constexpr int kSlots = 8;

// The first stack's worth of the area is spare, for what overflows thread 0's.
constexpr size_t kStackArea = (kMaxThreads + 1) * kStack;
char* stack_of(int linear) {
  return stacks + slot * kStackArea + (size_t)(linear + 1) * kStack;
}

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
  switch (operation) {
    case kShuffle: return "a shuffle";
    case kBallot: return "a vote";
    case kMatrixProduct: return "mma.sync";
    default: return "__syncwarp";
  }
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
  if (first.operation == kMatrixProduct) {
    if (members.size() != kWarp) {
      failure = name(first) + " calls mma.sync at " + at_line(first.line) + " with " +
                std::to_string(members.size()) + " lanes of its warp; all 32 must come";
      return true;
    }
    MatrixFragment* fragments[kWarp];
    for (int lane = 0; lane < kWarp; ++lane)
      fragments[lane] = (MatrixFragment*)(uintptr_t)members[lane]->value;
    multiply_fragments(fragments);
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
  ordered::block_barrier();
  for (Thread& thread : threads) thread.state = State::kReady;
  return "";
}

// Runs a block until it ends, or until it stops for others; `seen` says whether it waits for them.
std::string run_block(std::mt19937& random, bool& ended, uint64_t& seen) {
  ended = false;
  seen = kNever;
  std::vector<int> order(threads.size());
  std::iota(order.begin(), order.end(), 0);
  if (launch->seed == 1) std::reverse(order.begin(), order.end());
  for (;;) {
    if (launch->seed > 1) std::shuffle(order.begin(), order.end(), random);
    for (int i : order) {
      if (threads[i].state == State::kPolling && threads[i].seen != changes)
        threads[i].state = State::kReady;
      if (threads[i].state != State::kReady) continue;
      current = &threads[i];
      cusim_thread_idx = current->index;
      switch_fiber(scheduler, current->fiber);
      current = nullptr;
      if (!failure.empty()) return failure;
      // At once: the neighbour whose stack was overwritten must not run any more.
      if (std::memcmp(stack_of(i), &kCanary, sizeof kCanary) != 0)
        return "stack overflow: the local variables of " + name(threads[i]) + " exceed 64 KiB";
      if (stop_requested) {
        stop_requested = false;
        return "";
      }
    }
    bool progress = false;
    for (Thread& thread : threads)
      if (thread.state == State::kAtWarp) progress |= complete_warp_operation(thread);
    if (!failure.empty()) return failure;
    if (progress) continue;
    int done = 0, at_block_barrier = 0, polling = 0;
    for (const Thread& thread : threads) {
      done += thread.state == State::kDone;
      at_block_barrier += thread.state == State::kAtBlockBarrier;
      polling += thread.state == State::kPolling;
      progress |= thread.state == State::kPolling && thread.seen != changes;
    }
    if (progress) continue;
    ended = done == (int)threads.size();
    if (polling > 0) seen = changes;
    if (ended || polling > 0) return "";
    if (done + at_block_barrier != (int)threads.size()) return why_stuck(done, at_block_barrier);
    std::string error = complete_block_barrier(done);
    if (!error.empty()) return error;
  }
}

}  // namespace

int current_thread() { return current == nullptr ? -1 : current->linear; }

unsigned current_block() { return block_number; }

bool on_a_stack(uintptr_t address) {
  return address - (uintptr_t)stacks < kSlots * kStackArea;
}

void note_change() { ++changes; }

void maybe_stop_block() {
  if (current == nullptr || most_blocks == 1) return;
  if (launch->seed > 1 && switches() % 2 == 0) return;
  stop_requested = true;
  wait(State::kReady);
}

void before_poll(const void* address, int line) {
  std::vector<const void*>& polled = current->polled;
  bool again = std::find(polled.begin(), polled.end(), address) != polled.end();
  if (again && current->seen == changes) {
    current->line = line;
    wait(State::kPolling);
  }
  if (current->seen != changes) polled.clear();
  if (std::find(polled.begin(), polled.end(), address) == polled.end()) polled.push_back(address);
  current->seen = changes;
}

void fail(const std::string& message) {
  failure = name(*current) + " " + message;
  wait(State::kDone);
  __builtin_unreachable();
}

namespace {

// Copies the shared memory of the running block: out of its place, or back.
void copy_shared_memory(const Image& image, std::vector<char>& kept, bool back) {
  std::pair<uintptr_t, size_t> parts[3] = {{image.shared_begin, 0}, {0, 0}, {0, 0}};
  if (image.arena_begin == 0) {
    parts[0].second = image.shared_end - image.shared_begin;
  } else {
    uintptr_t after = image.arena_begin + kDynamicArenaBytes;
    parts[0].second = image.arena_begin - image.shared_begin;
    parts[1] = {image.arena_begin, launch->dynamic_shared};
    parts[2] = {after, image.shared_end - after};
  }
  kept.resize(parts[0].second + parts[1].second + parts[2].second);
  char* place = kept.data();
  for (auto [address, size] : parts) {
    if (size != 0) std::memcpy(back ? (void*)address : place, back ? place : (void*)address, size);
    place += size;
  }
}

void begin_block(const Image& image, unsigned block) {
  const Dim b = launch->block, g = launch->grid;
  block_number = block;
  cusim_block_idx = {block % g.x, block / g.x % g.y, block / g.x / g.y};
  threads.assign((size_t)b.x * b.y * b.z, Thread());
  for (int i = 0; i < (int)threads.size(); ++i) {
    Thread& thread = threads[i];
    thread.linear = i;
    thread.index = {i % b.x, i / b.x % b.y, i / b.x / b.y};
    thread.state = State::kReady;
    std::memcpy(stack_of(i), &kCanary, sizeof kCanary);
    thread.fiber.prepare(stack_of(i), kStack, thread_entry);
  }
  poison_shared_memory(image, launch->dynamic_shared, poison);
  if (launch->race) race::begin_block();
  async_copy::begin_block(image, *launch);
  ordered::begin_block();
}

Stopped stop_block(const Image& image, uint64_t seen) {
  Stopped block{block_number, cusim_block_idx, slot, {}, {}, nullptr, nullptr, nullptr, seen};
  block.threads.swap(threads);
  copy_shared_memory(image, block.shared, false);
  if (launch->race) block.watched = race::stop_block();
  block.copies = async_copy::stop_block();
  block.stores = ordered::stop_block();
  return block;
}

void resume_block(const Image& image, Stopped& block) {
  block_number = block.number;
  cusim_block_idx = block.index;
  slot = block.slot;
  threads.swap(block.threads);
  copy_shared_memory(image, block.shared, true);
  if (launch->race) race::resume_block(block.watched);
  async_copy::resume_block(block.copies);
  ordered::resume_block(block.stores);
}

std::string why_blocks_wait(const Stopped& block, size_t held, size_t waiting) {
  for (const Thread& thread : block.threads)
    if (thread.state == State::kPolling)
      return "deadlock: " + name(thread) + " waits at " + at_line(thread.line) +
             " for a value that none of the " + std::to_string(held) +
             " blocks that have begun will write; the device holds no more, and " +
             std::to_string(waiting) + " have not begun";
  return "deadlock";
}

// Which of the held blocks goes on, or `held.size()` for one that has not begun, or -1 for none.
int next_block(const std::vector<Stopped>& held, bool may_begin) {
  std::vector<int> able;
  for (int i = 0; i < (int)held.size(); ++i)
    if (held[i].seen != changes) able.push_back(i);
  if (may_begin) able.push_back((int)held.size());
  if (able.size() < 2) return able.empty() ? -1 : able[0];
  return able[switches() % able.size()];
}

}  // namespace

std::string run(const Launch& request) {
  Image image = find_image(*request.kernel);
  std::string error = check_launch(request, image);
  if (!error.empty()) return error;
  if (stacks == nullptr)
    stacks = (char*)mmap(nullptr, kSlots * kStackArea, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  launch = &request;
  poison = poison_of(request.seed);
  failure.clear();
  const Dim b = request.block, g = request.grid;
  cusim_block_dim = b;
  cusim_grid_dim = g;
  size_t count = (size_t)b.x * b.y * b.z;
  if (request.race) race::begin_launch(image, (unsigned)count, request.dynamic_shared);
  ordered::begin_launch(request.seed);

  const size_t all = (size_t)g.x * g.y * g.z;
  const size_t some = request.last_blocks == 0 ? all : std::min<size_t>(all, request.last_blocks);
  std::vector<unsigned> blocks(some);
  std::iota(blocks.begin(), blocks.end(), (unsigned)(all - some));
  std::mt19937 random(request.seed);
  if (request.seed == 1) std::reverse(blocks.begin(), blocks.end());
  if (request.seed > 1) std::shuffle(blocks.begin(), blocks.end(), random);
  // How many blocks the device holds: one, several, or as many as the seed says.
  switches.seed(request.seed);
  most_blocks = request.seed == 0 ? 1 : request.seed == 1 ? 4 : 1 + switches() % kSlots;
  stop_requested = false;
  changes = 0;

  std::vector<Stopped> held;
  size_t begun = 0;
  while (error.empty() && (begun < blocks.size() || !held.empty())) {
    bool may_begin = begun < blocks.size() && held.size() < most_blocks;
    int chosen = next_block(held, may_begin);
    if (chosen < 0) {
      // What a block has written becomes visible some time, even if nothing orders it.
      for (Stopped& block : held) ordered::make_visible(block.stores);
      if (next_block(held, false) >= 0) continue;
      cusim_block_idx = held[0].index;
      error = why_blocks_wait(held[0], held.size(), blocks.size() - begun);
    } else {
      if (chosen < (int)held.size()) {
        resume_block(image, held[chosen]);
        held.erase(held.begin() + chosen);
      } else {
        for (slot = 0;; ++slot) {
          auto uses = [](const Stopped& block) { return block.slot == slot; };
          if (std::none_of(held.begin(), held.end(), uses)) break;
        }
        begin_block(image, blocks[begun++]);
      }
      bool ended;
      uint64_t seen;
      error = run_block(random, ended, seen);
      if (error.empty() && !ended) {
        held.push_back(stop_block(image, seen));
      } else {
        ordered::end_block();
        if (request.race) race::end_block();
      }
    }
    if (!error.empty())
      error = "block (" + std::to_string(cusim_block_idx.x) + "," +
              std::to_string(cusim_block_idx.y) + "," + std::to_string(cusim_block_idx.z) +
              "): " + error;
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
