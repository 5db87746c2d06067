// Accesses that a device refuses or that hit a neighbour, as the compiler's own checks find them.
//
// Kernels are compiled with -fsanitize=alignment,bounds-strict,object-size, and linked without that
// sanitizer's library: the functions that it calls are those here. Each ends the kernel.

#include <cstring>

#include "runtime.h"

namespace cusim {
namespace {

// What g++ lays out for each place that it checks; as libubsan reads it.
struct Place {
  const char* file;
  uint32_t line, column;
};

struct Type {
  uint16_t kind, information;
  char name[1];  // in quotes
};

struct Mismatch {
  Place place;
  const Type* type;
  unsigned char log_of_alignment, access;
};

struct OutOfBounds {
  Place place;
  const Type* array;
  const Type* index;
};

constexpr unsigned char kStore = 1;

std::string at(const Place& place) {
  const char* name = place.file == nullptr ? nullptr : strrchr(place.file, '/');
  std::string file = name != nullptr ? name + 1 : place.file != nullptr ? place.file : "?";
  if (file == "kernel.cu") return "at {line:" + std::to_string(place.line) + "}";
  return "in " + file + ", line " + std::to_string(place.line);
}

// As the source has it: 'int4', not 'const struct int4'.
std::string name_of(const Type& type) {
  std::string name = type.name;
  for (std::string word : {"const ", "struct "}) {
    size_t found = name.find(word);
    if (found != std::string::npos) name.erase(found, word.size());
  }
  return name;
}

// Signed, if its type is; values of up to 64 bits are passed as they are.
std::string number(const Type& type, uintptr_t value) {
  unsigned bits = 1u << (type.information >> 1);
  if ((type.information & 1) == 0 || bits > 64) return std::to_string(value);
  return std::to_string((int64_t)(value << (64 - bits)) >> (64 - bits));
}

}  // namespace

void require_aligned(const void* address, size_t size, int line) {
  if ((uintptr_t)address % size == 0) return;
  fail("makes a misaligned access at {line:" + std::to_string(line) +
       "}: its address is no multiple of " + std::to_string(size));
}

}  // namespace cusim

extern "C" void __ubsan_handle_type_mismatch_v1(void* data, uintptr_t address) {
  using namespace cusim;
  const auto& found = *(const Mismatch*)data;
  if (current_thread() < 0) return;
  std::string verb = found.access == kStore ? "write" : "read";
  std::string what = verb + " of " + name_of(*found.type) + " " + at(found.place);
  uintptr_t alignment = (uintptr_t)1 << found.log_of_alignment;
  if (address % alignment != 0)
    fail("makes a misaligned " + what + ": its address is no multiple of " +
         std::to_string(alignment));
  fail("makes an out-of-bounds " + what + ", past the array that it begins in");
}

extern "C" void __ubsan_handle_out_of_bounds(void* data, uintptr_t index) {
  using namespace cusim;
  const auto& found = *(const OutOfBounds*)data;
  if (current_thread() < 0) return;
  fail("makes an out-of-bounds access " + at(found.place) + ": index " +
       number(*found.index, index) + " of " + name_of(*found.array));
}
