// What a CUDA source file may take for granted, for g++.
//
// Included before the text that TVM's CUDA code generator emits, so that the text itself is
// compiled unchanged.  Every CUDA thread is a fiber of the runtime (../runtime); the functions
// declared `cusim_*` below are the runtime's entry points.  It is precompiled, so that nothing in
// it may depend on what a module defines before: what differs from module to module is a macro.
#pragma once

#include <math.h>
#include <stdlib.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

// ---- the runtime --------------------------------------------------------------------------------

namespace cusim {

struct Dim {
  unsigned x, y, z;
};

// What the driver must know of a kernel; one object per kernel, found by its symbol.
struct Kernel {
  void (*call)(void** arguments);
  const bool* is_pointer;  // of each parameter
  size_t parameters;
  unsigned max_threads;  // of __launch_bounds__, or 1024
  size_t static_shared;  // of this kernel; the module's block holds that of all its kernels
  const char* module_key;
  void* (*shared_anchor)();          // forces the module's thread-local block into existence
  unsigned char* (*dynamic_arena)();  // null: the kernel uses no dynamic shared memory
};

enum WarpOperation : int { kSyncWarp = 0, kShuffle = 1, kBallot = 2, kMatrixProduct = 3 };

// What a lane brings to `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`, and takes away in `c`.
struct MatrixFragment {
  float a[4], b[2], c[4];
};

constexpr unsigned kDynamicArenaBytes = 232448;  // 227 KiB, what an sm_90 block may ask for
constexpr size_t kStaticSharedBytes = 48 * 1024;  // and what it gets without asking, of both kinds

}  // namespace cusim

extern "C" {
// `__thread`, not `thread_local`: the latter calls a wrapper function at each access.
extern __thread cusim::Dim cusim_thread_idx, cusim_block_idx, cusim_block_dim, cusim_grid_dim;
void cusim_block_barrier(int line);
uint64_t cusim_warp(int operation, unsigned mask, uint64_t value, int source_lane, int line);
int cusim_lane();
void cusim_atomic_access(void* address, size_t size, int line);
// Asynchronous copies; what TVM's inline PTX for them is replaced by (see ../_toolchain.py).
unsigned cusim_shared_offset(const void* address);
void cusim_async_copy(unsigned to, const void* from, size_t size, int line);
void cusim_async_commit();
void cusim_async_wait(int left);
void cusim_ordered_load(const void* address, void* value, size_t size, int acquires, int line);
void cusim_ordered_store(void* address, const void* value, size_t size, int releases, int line);
}

// ---- keywords -----------------------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
// All threads of a block are fibers of one CPU thread, so a thread-local variable is shared by the
// block and by nobody else.
#define __shared__ thread_local
// g++ rejects `thread_local alignas(64) float x[8]`; it accepts the attribute at that place.
#define alignas(n) __attribute__((aligned(n)))

// The compiler that TVM's preambles believe in.  Defined after the standard headers.
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0

#define threadIdx cusim_thread_idx
#define blockIdx cusim_block_idx
#define blockDim cusim_block_dim
#define gridDim cusim_grid_dim
#define warpSize 32

// ---- barriers, shuffles, votes ------------------------------------------------------------------
// `line = __builtin_LINE()` is the line of the caller: it identifies the barrier in messages and
// tells two barriers apart when threads wait at different ones.

inline void __syncthreads(int line = __builtin_LINE()) { cusim_block_barrier(line); }

inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
  cusim_warp(cusim::kSyncWarp, mask, 0, 0, line);
}

inline size_t __cvta_generic_to_shared(const void* p) { return cusim_shared_offset(p); }

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

namespace cusim {

template <class T>
inline T shuffle(unsigned mask, T value, int source_lane, int line) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "not a shuffle operand");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = cusim_warp(kShuffle, mask, bits, source_lane, line);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// What that instruction is replaced by (see ../_toolchain.py): all lanes of the warp must come.
inline void matrix_product(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1,
                           unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0, float c1,
                           float c2, float c3, int line) {
  MatrixFragment own = {{}, {}, {c0, c1, c2, c3}};
  const unsigned words[6] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(own.a, words, sizeof own.a);
  std::memcpy(own.b, words + 4, sizeof own.b);
  cusim_warp(kMatrixProduct, 0xffffffffu, (uint64_t)(uintptr_t)&own, 0, line);
  d0 = own.c[0], d1 = own.c[1], d2 = own.c[2], d3 = own.c[3];
}

}  // namespace cusim

template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32,
                     int line = __builtin_LINE()) {
  int base = cusim_lane() / width * width;
  return cusim::shuffle(mask, value, base + (source & (width - 1)), line);
}

template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        int line = __builtin_LINE()) {
  int lane = cusim_lane(), source = lane - (int)delta;
  return cusim::shuffle(mask, value, source < lane / width * width ? lane : source, line);
}

template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                          int line = __builtin_LINE()) {
  int lane = cusim_lane(), source = lane + (int)delta;
  return cusim::shuffle(mask, value, source >= (lane / width + 1) * width ? lane : source, line);
}

template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32,
                         int line = __builtin_LINE()) {
  int lane = cusim_lane(), source = lane ^ flip;
  return cusim::shuffle(mask, value, source >= (lane / width + 1) * width ? lane : source, line);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return (unsigned)cusim_warp(cusim::kBallot, mask, predicate != 0, 0, line);
}

inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return __ballot_sync(mask, predicate, line) != 0;
}

inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
  return __ballot_sync(mask, !predicate, line) == 0;
}

// ---- atomics ------------------------------------------------------------------------------------
// A fiber is never preempted, so plain code is atomic.  The access is announced to the race
// detector, which lets atomics race with plain accesses only.

namespace cusim {

template <class T, class F>
__attribute__((no_sanitize("thread"))) inline T atomic_update(T* address, int line, F update) {
  cusim_atomic_access((void*)address, sizeof(T), line);
  T old = *address;
  *address = update(old);
  return old;
}

}  // namespace cusim

#define CUSIM_ATOMIC(NAME, EXPRESSION)                                        \
  template <class T, class V>                                                 \
  inline T NAME(T* address, V operand, int line = __builtin_LINE()) {         \
    T value = (T)operand;                                                     \
    auto update = [value](T old) -> T { return EXPRESSION; };                 \
    return cusim::atomic_update(address, line, update);                       \
  }
CUSIM_ATOMIC(atomicAdd, old + value)
CUSIM_ATOMIC(atomicSub, old - value)
CUSIM_ATOMIC(atomicMax, old < value ? value : old)
CUSIM_ATOMIC(atomicMin, value < old ? value : old)
CUSIM_ATOMIC(atomicAnd, old & value)
CUSIM_ATOMIC(atomicOr, old | value)
CUSIM_ATOMIC(atomicXor, old ^ value)
CUSIM_ATOMIC(atomicExch, value)
#undef CUSIM_ATOMIC

template <class T, class U, class V>
inline T atomicCAS(T* address, U expected, V desired, int line = __builtin_LINE()) {
  auto update = [=](T old) -> T { return old == (T)expected ? (T)desired : old; };
  return cusim::atomic_update(address, line, update);
}

namespace cusim {

// What TVM's inline PTX for ordered loads and stores is replaced by (see ../_toolchain.py).
template <class T>
inline void ordered_load(T& value, const void* address, int acquires, int line) {
  T loaded;  // not `value`: the race detector would see its address
  cusim_ordered_load(address, &loaded, sizeof loaded, acquires, line);
  value = loaded;
}

template <class T>
inline void ordered_store(const void* address, T value, int releases, int line) {
  cusim_ordered_store((void*)address, &value, sizeof value, releases, line);
}

}  // namespace cusim

inline void __nanosleep(unsigned) {}

template <class T>
inline T __ldg(const T* address) {
  return *address;
}

// ---- vector types -------------------------------------------------------------------------------
// CUDA aligns a vector of 2 or 4 to its size, to at most 16 bytes, and one of 3 as its element.

#define CUSIM_VECTOR(T, NAME)                                                       \
  struct __align__(sizeof(T) * 2 > 16 ? 16 : sizeof(T) * 2) NAME##2 {               \
    T x, y;                                                                         \
  };                                                                                \
  struct NAME##3 {                                                                  \
    T x, y, z;                                                                      \
  };                                                                                \
  struct __align__(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) NAME##4 {               \
    T x, y, z, w;                                                                   \
  };                                                                                \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                        \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUSIM_VECTOR(signed char, char)
CUSIM_VECTOR(unsigned char, uchar)
CUSIM_VECTOR(short, short)
CUSIM_VECTOR(unsigned short, ushort)
CUSIM_VECTOR(int, int)
CUSIM_VECTOR(unsigned, uint)
CUSIM_VECTOR(long, long)
CUSIM_VECTOR(unsigned long, ulong)
CUSIM_VECTOR(long long, longlong)
CUSIM_VECTOR(unsigned long long, ulonglong)
CUSIM_VECTOR(float, float)
CUSIM_VECTOR(double, double)
#undef CUSIM_VECTOR

// ---- min and max: CUDA's overload set, no more --------------------------------------------------
// An overload that CUDA lacks must stay an error here.  Floats ignore NaN, as fmaxf does.

#define CUSIM_MIN_MAX(R, A, B)                                                   \
  inline R max(A a, B b) { return (R)a < (R)b ? (R)b : (R)a; }                   \
  inline R min(A a, B b) { return (R)b < (R)a ? (R)b : (R)a; }
#define CUSIM_INTEGER_MIN_MAX(S, U)                                              \
  CUSIM_MIN_MAX(S, S, S)                                                         \
  CUSIM_MIN_MAX(U, U, U)                                                         \
  CUSIM_MIN_MAX(U, S, U)                                                         \
  CUSIM_MIN_MAX(U, U, S)
CUSIM_INTEGER_MIN_MAX(int, unsigned)
CUSIM_INTEGER_MIN_MAX(long, unsigned long)
CUSIM_INTEGER_MIN_MAX(long long, unsigned long long)
#undef CUSIM_INTEGER_MIN_MAX
#undef CUSIM_MIN_MAX
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }

// ---- arithmetic that the C library lacks --------------------------------------------------------

namespace cusim {

// ex2.approx.ftz.f32: denormal operands and results are zero.
inline float exp2_without_denormals(float x) {
  float y = exp2f(x);
  return fabsf(y) < 1.17549435e-38f ? 0.0f : y;
}

}  // namespace cusim

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }  // NaN becomes 0
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a * b) >> 32);
}

namespace cusim {

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "a reinterpretation keeps the size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace cusim

inline int __float_as_int(float x) { return cusim::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return cusim::bits<unsigned>(x); }
inline float __int_as_float(int x) { return cusim::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return cusim::bits<float>(x); }
inline long long __double_as_longlong(double x) { return cusim::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return cusim::bits<double>(x); }

#include "math_constants.h"

// ---- dynamic shared memory ----------------------------------------------------------------------

#define CUSIM_DYNAMIC_SHARED                                                      \
  namespace cusim {                                                               \
  static unsigned char* dynamic_arena() {                                         \
    static thread_local unsigned char arena[kDynamicArenaBytes] __align__(1024);  \
    return arena;                                                                 \
  }                                                                               \
  static unsigned char* (*const arena_of_this_module)() = dynamic_arena;          \
  }
#define CUSIM_NO_DYNAMIC_SHARED \
  namespace cusim {             \
  static unsigned char* (*const arena_of_this_module)() = nullptr; \
  }

// ---- from a kernel to the object that the driver finds ------------------------------------------

namespace cusim {

// Of this module alone: kernels of other modules have the same names, and the dynamic linker would
// let all of them share the first one's array.
namespace {

template <auto function>
struct Caller;

template <class... Parameters, void (*function)(Parameters...)>
struct Caller<function> {
  static constexpr size_t parameters = sizeof...(Parameters);
  static constexpr bool is_pointer[] = {std::is_pointer<Parameters>::value..., false};
  // Not instrumented: the packed arguments lie in host memory, which is no memory of the kernel.
  __attribute__((no_sanitize("thread"))) static void call(void** arguments) {
    unpack(arguments, std::index_sequence_for<Parameters...>{});
  }
  template <size_t... index>
  __attribute__((no_sanitize("thread"))) static void unpack(void** arguments,
                                                            std::index_sequence<index...>) {
    (void)arguments;
    function(*(std::remove_cv_t<Parameters>*)arguments[index]...);
  }
};

}  // namespace
}  // namespace cusim

#define CUSIM_MODULE(KEY)                             \
  static const char cusim_module_key[] = KEY;         \
  static void* cusim_shared_anchor() {                \
    static thread_local char anchor;                  \
    return (void*)&anchor;                            \
  }
#define CUSIM_KERNEL(NAME, MAX_THREADS, STATIC_SHARED)                         \
  extern "C" {                                                                 \
  extern const cusim::Kernel cusim_kernel_##NAME;                              \
  const cusim::Kernel cusim_kernel_##NAME = {cusim::Caller<NAME>::call,                 \
                                             cusim::Caller<NAME>::is_pointer,           \
                                             cusim::Caller<NAME>::parameters,           \
                                             MAX_THREADS, STATIC_SHARED,                \
                                             cusim_module_key, cusim_shared_anchor,     \
                                             cusim::arena_of_this_module};              \
  }
