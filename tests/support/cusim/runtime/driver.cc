// libcuda.so.1: the part of the driver interface that libtvm_runtime_cuda.so imports.
//
// A "cubin" is a shared object that g++ made of the emitted source; it is loaded with dlopen.

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"
#include "runtime.h"

#define CUSIM_API extern "C" __attribute__((visibility("default")))

namespace cusim {
namespace {

struct Module;

struct Function {
  Module* module;
  std::string name;
  const Kernel* kernel;
  unsigned max_dynamic_shared;  // unless asked for: what static memory leaves of 48 KiB
};

struct Module {
  void* handle;
  std::vector<std::unique_ptr<Function>> functions;
};

unsigned number_from_environment(const char* name) {
  const char* text = getenv(name);
  return text == nullptr ? 0 : (unsigned)strtoul(text, nullptr, 10);
}

unsigned seed = number_from_environment("CUSIM_SEED");
unsigned last_blocks = 0;
bool race_detection = number_from_environment("CUSIM_RACE") != 0;
std::string last_error;
std::mutex launch_mutex;  // the scheduler runs one grid at a time

// Python's side: puts source lines into a message.
using ExplainCallback = void (*)(const char* module_key, const char* message, char* text,
                                 size_t capacity);
ExplainCallback explain_callback = nullptr;

std::string explain(const char* module_key, const std::string& message) {
  if (explain_callback == nullptr) return message;
  std::vector<char> text(1 << 16, '\0');
  explain_callback(module_key, message.c_str(), text.data(), text.size());
  return text[0] == '\0' ? message : std::string(text.data());
}

// A path of an open file that was never given before: dlopen takes a known path for a loaded
// library, and the numbers of closed files come again.  The digits of a counter, spelled as
// "./" and ".//", make it new.
std::string unused_path(int file) {
  static unsigned loads = 0;
  std::string path = "/proc/self/fd/";
  for (unsigned digits = ++loads; digits != 0; digits >>= 1) path += digits & 1 ? ".//" : "./";
  return path + std::to_string(file);
}

const Kernel* find_kernel(void* handle, const std::string& name) {
  return (const Kernel*)dlsym(handle, ("cusim_kernel_" + name).c_str());
}

std::string launch_kernel(const LaunchConfig& config, Function& function, void** arguments) {
  if (config.shared_bytes > function.max_dynamic_shared)
    return "too much dynamic shared memory: " + std::to_string(config.shared_bytes) +
           " bytes, at most " + std::to_string(function.max_dynamic_shared) + " beside " +
           std::to_string(function.kernel->static_shared) + " of static shared memory";
  if (config.shared_bytes != 0 && function.kernel->dynamic_arena == nullptr)
    return "the launch asks for dynamic shared memory, the kernel declares none";
  Launch launch;
  launch.kernel = function.kernel;
  launch.grid = {config.grid_x, config.grid_y, config.grid_z};
  launch.block = {config.block_x, config.block_y, config.block_z};
  launch.dynamic_shared = config.shared_bytes;
  // Kernels get the addresses of the bytes, which the host does not have.
  StreamWork work;
  std::vector<void*> given(arguments, arguments + launch.kernel->parameters);
  std::vector<void*> addresses(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    if (!launch.kernel->is_pointer[i]) continue;
    void* address = *(void**)given[i];
    addresses[i] = bytes_at(address);
    if (address != nullptr && addresses[i] == nullptr)
      return "argument " + std::to_string(i) + " does not point to memory of the device";
    work.uses(address, true);
    given[i] = &addresses[i];
  }
  launch.arguments = given.data();
  launch.seed = seed;
  launch.race = race_detection;
  launch.last_blocks = last_blocks;
  return run(launch);
}

}  // namespace
}  // namespace cusim

using namespace cusim;

// ---- for Python ---------------------------------------------------------------------------------

CUSIM_API void cusim_configure(unsigned new_seed, int new_race) {
  std::lock_guard<std::mutex> lock(launch_mutex);
  seed = new_seed;
  race_detection = new_race != 0;
}

CUSIM_API void cusim_run_last_blocks(unsigned count) {
  std::lock_guard<std::mutex> lock(launch_mutex);
  last_blocks = count;
}

CUSIM_API void cusim_set_callback(ExplainCallback explain) { explain_callback = explain; }

CUSIM_API void* cusim_allocate(size_t size, int pinned) {
  return allocate(size, poison_of(seed), pinned != 0);
}
CUSIM_API int cusim_release(void* address) { return release(address); }
CUSIM_API void* cusim_bytes_at(const void* address) { return bytes_at(address); }
CUSIM_API void cusim_synchronise() { synchronise(); }

CUSIM_API int cusim_copy(void* to, const void* from, size_t size) {
  if (reaches_past_its_end(to, size) || reaches_past_its_end(from, size)) return 0;
  StreamWork work;
  work.uses(to, true);
  work.uses(from, false);
  void* target = bytes_at(to);
  const void* source = bytes_at(from);
  memmove(target != nullptr ? target : to, source != nullptr ? source : from, size);
  return 1;
}

// ---- the driver interface -----------------------------------------------------------------------

CUSIM_API int cuModuleLoadData(void** module, const void* bytes) {
  const auto* elf = (const unsigned char*)bytes;
  if (memcmp(elf, "\177ELF", 4) != 0) return kInvalidImage;
  // The caller does not say how long the image is: it ends with the table of section headers.
  uint64_t table;
  uint16_t entry_size, entries;
  memcpy(&table, elf + 40, 8);
  memcpy(&entry_size, elf + 58, 2);
  memcpy(&entries, elf + 60, 2);
  size_t size = table + (size_t)entry_size * entries;
  int file = memfd_create("cusim", 0);
  bool written = file >= 0 && write(file, bytes, size) == (ssize_t)size;
  std::string path = unused_path(file);
  void* handle = written ? dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (file >= 0) close(file);
  if (handle == nullptr) {
    const char* reason = dlerror();
    last_error = std::string("module does not load: ") + (reason ? reason : "no memory file");
    return kInvalidImage;
  }
  auto* loaded = new Module();
  loaded->handle = handle;
  *module = loaded;
  return kSuccess;
}

CUSIM_API int cuModuleUnload(void* module) {
  auto* loaded = (Module*)module;
  dlclose(loaded->handle);
  delete loaded;
  return kSuccess;
}

CUSIM_API int cuModuleGetFunction(void** function, void* module, const char* name) {
  auto* loaded = (Module*)module;
  const Kernel* kernel = find_kernel(loaded->handle, name);
  if (kernel == nullptr) return kNotFound;
  size_t fixed = std::min(kernel->static_shared, kStaticSharedBytes);
  unsigned left = (unsigned)(kStaticSharedBytes - fixed);
  loaded->functions.emplace_back(new Function{loaded, name, kernel, left});
  *function = loaded->functions.back().get();
  return kSuccess;
}

CUSIM_API int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute != kMaxDynamicSharedSizeBytes) return kSuccess;
  auto& changed = *(Function*)function;
  if (value < 0 || (size_t)value + changed.kernel->static_shared > kDynamicArenaBytes)
    return kInvalidValue;
  changed.max_dynamic_shared = (unsigned)value;
  return kSuccess;
}

CUSIM_API int cuLaunchKernelEx(const LaunchConfig* config, void* function, void** arguments,
                               void**) {
  std::lock_guard<std::mutex> lock(launch_mutex);
  auto& called = *(Function*)function;
  std::string error = launch_kernel(*config, called, arguments);
  if (error.empty()) return kSuccess;
  last_error = explain(called.kernel->module_key, "kernel " + called.name + ": " + error);
  return kLaunchFailed;
}

CUSIM_API int cuDeviceGetName(char* name, int size, int) {
  snprintf(name, (size_t)size, "CPU simulation of a CUDA device");
  return kSuccess;
}

// TVM puts this name into the exception it raises, so the whole story goes here.
CUSIM_API int cuGetErrorName(int status, const char** text) {
  static thread_local std::string copy;
  bool told = status == kLaunchFailed || status == kInvalidImage;
  copy = told ? last_error : "CUDA error " + std::to_string(status);
  *text = copy.c_str();
  return kSuccess;
}

CUSIM_API int cuGetErrorString(int status, const char** text) {
  return cuGetErrorName(status, text);
}

CUSIM_API int cuTensorMapEncodeTiled() { return kNotSupported; }
