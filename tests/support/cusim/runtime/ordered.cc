// Loads and stores with an order: ld.acquire, ld.relaxed, st.release, st.relaxed at device scope.
//
// A relaxed store is kept back, as a device may keep it: other blocks see it when its block ends,
// or earlier, by chance, in any order.  A release makes visible what its thread stored, and what
// the other threads of the block stored before the last barrier.  So data that is handed over
// without a release is found out by a wrong value.  Loads of a thread see its own stores.
//
// A load may be part of a loop that waits: it gives other blocks their turn.  That an acquire is
// missing changes nothing here: loads are not made early.

#include <cstring>
#include <random>
#include <vector>

#include "runtime.h"

namespace cusim {
namespace {

struct Store {
  void* address;
  size_t size;
  uint64_t bits;
  int thread;
  unsigned barriers;  // that the block had passed
};

struct Block {
  std::vector<Store> stores;
  unsigned barriers = 0;
};

Block running;
std::mt19937 chance;
bool by_chance = false;

// Makes some stores visible to other blocks, in the order in which they were made.
template <class Chosen>
void flush(Block& block, Chosen chosen) {
  std::vector<Store> left;
  for (const Store& store : block.stores) {
    if (!chosen(store)) {
      left.push_back(store);
      continue;
    }
    std::memcpy(store.address, &store.bits, store.size);
    note_change();
  }
  block.stores.swap(left);
}

}  // namespace

namespace ordered {

void begin_launch(unsigned seed) {
  chance.seed(seed);
  by_chance = seed > 1;
}

void begin_block() { running = Block(); }
void block_barrier() { ++running.barriers; }

void end_block() {
  flush(running, [](const Store&) { return true; });
}

std::shared_ptr<void> stop_block() {
  if (by_chance) flush(running, [](const Store&) { return chance() % 2 == 0; });
  return std::make_shared<Block>(std::move(running));
}

void resume_block(const std::shared_ptr<void>& stopped) {
  running = std::move(*(Block*)stopped.get());
}

void make_visible(const std::shared_ptr<void>& stopped) {
  flush(*(Block*)stopped.get(), [](const Store&) { return true; });
}

}  // namespace ordered
}  // namespace cusim

extern "C" void cusim_ordered_load(const void* address, void* value, size_t size, int acquires,
                                   int line) {
  using namespace cusim;
  require_aligned(address, size, line);
  before_poll(address, line);
  race::ordered_access(address, size, false, acquires, line);
  std::memcpy(value, address, size);
  for (const Store& store : running.stores)
    if (store.address == address && store.thread == current_thread())
      std::memcpy(value, &store.bits, size);
}

extern "C" void cusim_ordered_store(void* address, const void* value, size_t size, int releases,
                                    int line) {
  using namespace cusim;
  require_aligned(address, size, line);
  maybe_stop_block();
  race::ordered_access(address, size, true, releases, line);
  int thread = current_thread();
  Store made{address, size, 0, thread, running.barriers};
  std::memcpy(&made.bits, value, size);
  running.stores.push_back(made);
  unsigned now = running.barriers;
  if (releases)
    flush(running,
          [=](const Store& store) { return store.thread == thread || store.barriers < now; });
  else if (by_chance && chance() % 2 == 0)
    flush(running, [](const Store& store) { return &store == &running.stores.back(); });
  maybe_stop_block();
}
