// Asynchronous copies from global to shared memory: cp.async, its groups, and waiting for them.
//
// A device may copy at any moment between the instruction and the wait. Here that is as late as
// possible, when the thread waits, so that who reads without waiting gets what lay there before;
// with an odd seed it is at once, so that who copies over what others still read is found out.
// The race detector takes the target as written at both moments, and lets nobody touch it between.

#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "runtime.h"

namespace cusim {
namespace {

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  size_t size;
  int line;
};

struct Copies {
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

Image image;
bool at_once = false, watched = false;
std::vector<Copies> all;

void arrive(const std::vector<Copy>& group) {
  for (const Copy& copy : group) {
    if (watched) race::end_copy(copy.to, copy.size, copy.line);
    if (!at_once) std::memcpy(copy.to, copy.from, copy.size);
  }
}

}  // namespace

namespace async_copy {

void begin_block(const Image& kernel_image, const Launch& launch) {
  image = kernel_image;
  at_once = launch.seed % 2 == 1;
  watched = launch.race;
  all.assign((size_t)launch.block.x * launch.block.y * launch.block.z, Copies());
}

std::shared_ptr<void> stop_block() {
  auto stopped = std::make_shared<std::vector<Copies>>();
  stopped->swap(all);
  return stopped;
}

void resume_block(const std::shared_ptr<void>& stopped) {
  all.swap(*(std::vector<Copies>*)stopped.get());
}

}  // namespace async_copy
}  // namespace cusim

extern "C" unsigned cusim_shared_offset(const void* address) {
  return (unsigned)((uintptr_t)address - cusim::image.shared_begin);
}

extern "C" void cusim_async_copy(unsigned to, const void* from, size_t size, int line) {
  using namespace cusim;
  unsigned char* target = (unsigned char*)(image.shared_begin + to);
  std::string bytes = std::to_string(size) + " bytes at {line:" + std::to_string(line) + "}";
  if ((uintptr_t)target + size > image.shared_end)
    fail("begins an asynchronous copy that does not lead to shared memory, of " + bytes);
  if (((uintptr_t)target | (uintptr_t)from) % size != 0)
    fail("begins an asynchronous copy whose addresses are no multiples of its size, of " + bytes);
  Copy copy{target, (const unsigned char*)from, size, line};
  if (watched) race::begin_copy(copy.to, copy.from, copy.size, copy.line);
  if (at_once) std::memcpy(copy.to, copy.from, copy.size);
  all[current_thread()].open.push_back(copy);
}

extern "C" void cusim_async_commit() {
  auto& mine = cusim::all[cusim::current_thread()];
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}

extern "C" void cusim_async_wait(int left) {
  auto& groups = cusim::all[cusim::current_thread()].groups;
  while ((int)groups.size() > left) {
    cusim::arrive(groups.front());
    groups.pop_front();
  }
}
