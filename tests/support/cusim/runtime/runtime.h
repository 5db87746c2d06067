// What the parts of the runtime know of each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "../include/cusim.h"

namespace cusim {

constexpr int kWarp = 32;
constexpr unsigned kMaxThreads = 1024;

// The loaded code of a kernel: where its machine code and its shared memory lie.
struct Image {
  uintptr_t base = 0;             // load address, which messages subtract from code addresses
  uintptr_t begin = 0, end = 0;   // all its segments: constants and __device__ variables
  uintptr_t shared_begin = 0, shared_end = 0;  // its thread-local block: shared memory
  uintptr_t arena_begin = 0;                   // dynamic shared memory within it, 0 if none
};

struct Launch {
  const Kernel* kernel;
  Dim grid, block;
  unsigned dynamic_shared;
  void** arguments;
  unsigned seed;
  bool race;
  unsigned last_blocks;  // how many of the grid's last blocks run; 0 for all
};

// launch.cc: where a kernel lies, and what a launch must hold to.
Image find_image(const Kernel& kernel);
void poison_shared_memory(const Image& image, unsigned dynamic_shared, unsigned char poison);
std::string check_launch(const Launch& launch, const Image& image);

// scheduler.cc: runs the grid; returns an empty string or what went wrong.
std::string run(const Launch& launch);

// Ends the kernel at once from within a thread, with this message.
[[noreturn]] void fail(const std::string& message);

// Ends it where an atomic access or one with an order is not aligned to its size.
void require_aligned(const void* address, size_t size, int line);

// The thread that is running, -1 between threads; its block.
int current_thread();
unsigned current_block();
bool on_a_stack(uintptr_t address);

// Memory that blocks poll has changed; the running block makes room for others, if the seed says so;
// the running thread looks at an address, and waits if nothing has changed since it looked there.
void note_change();
void maybe_stop_block();
void before_poll(const void* address, int line);

// memory.cc: memory of the device, which the host cannot reach, and pinned memory of the host.
void* allocate(size_t size, unsigned char poison, bool pinned);
bool release(void* address);
unsigned char poison_of(unsigned seed);
// Where kernels and copies find what the host knows by this address; null if that is none of ours.
void* bytes_at(const void* address);
bool reaches_past_its_end(const void* address, size_t size);
// Of what `bytes_at` gave: whether the bytes lie within one allocation.
bool is_device_memory(uintptr_t bytes, size_t size);
// One copy or launch: from its end to the next `synchronise` the host cannot touch what it used.
struct StreamWork {
  StreamWork();
  ~StreamWork();
  void uses(const void* address, bool writes);
};
void synchronise();

// race.cc: the data-race detector, fed by the instrumentation of the kernel.
namespace race {
void begin_launch(const Image& image, unsigned threads, unsigned dynamic_shared);
void begin_block();
void end_block();
void block_barrier();
void warp_barrier(int warp, unsigned mask);
// What belongs to the running block only, while another one runs.
std::shared_ptr<void> stop_block();
void resume_block(const std::shared_ptr<void>& stopped);
// A load or store that is relaxed, or acquires or releases.
void ordered_access(const void* address, size_t size, bool write, bool orders, int line);
// Ends the detection; an empty string or one line per pair of places that race.
std::string end_launch();
// An asynchronous copy by the running thread: between the two, nobody may touch its target.
void begin_copy(void* to, const void* from, size_t size, int line);
void end_copy(void* to, size_t size, int line);
}  // namespace race

// matrix.cc: the product of a warp's fragments; `lanes` are those of all its 32 lanes.
void multiply_fragments(MatrixFragment* const* lanes);

// async_copy.cc: copies that a thread begins and waits for.
namespace async_copy {
void begin_block(const Image& image, const Launch& launch);
// The copies of the running block, while another one runs.
std::shared_ptr<void> stop_block();
void resume_block(const std::shared_ptr<void>& stopped);
}  // namespace async_copy

// ordered.cc: stores that others see late, in any order but for releases.
namespace ordered {
void begin_launch(unsigned seed);
void begin_block();
void block_barrier();
void end_block();
std::shared_ptr<void> stop_block();
void resume_block(const std::shared_ptr<void>& stopped);
void make_visible(const std::shared_ptr<void>& stopped);
}  // namespace ordered

}  // namespace cusim
