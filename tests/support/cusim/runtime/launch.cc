// What a launch needs before it runs: where its kernel lies, whether its shape is legal, and rubbish
// in its shared memory.

#include <link.h>

#include <algorithm>
#include <cstring>

#include "runtime.h"

namespace cusim {

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
void poison_shared_memory(const Image& image, unsigned dynamic_shared, unsigned char poison) {
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
  size_t fixed = launch.kernel->static_shared;
  if (fixed > kStaticSharedBytes)
    return "too much static shared memory: " + std::to_string(fixed) + " bytes, at most 49152";
  return "";
}

}  // namespace cusim
