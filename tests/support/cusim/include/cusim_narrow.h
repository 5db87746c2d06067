// half and bfloat16: 16 bits of storage, each operation done in float and rounded once.
//
// Float holds the product of two such numbers exactly and rounds their sum and quotient with more
// than twice their precision plus two bits, so rounding the float result again gives the correctly
// rounded result.  The compilers' own 16-bit types are not used: g++ keeps the float between two
// operations, some versions lack them, and others only on some processors.
#pragma once

#include "cusim.h"

namespace cusim {

struct Binary16 {
  static uint16_t narrow(float value) {
    uint32_t u = bits<uint32_t>(value), sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7fffu);      // NaN
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);     // rounds to infinity
    if (magnitude < 0x38800000u) {                                       // subnormal or zero
      // Adding 0.5 aligns the unit in the last place of half's subnormals with float's.
      float aligned = bits<float>(magnitude) + 0.5f;
      return (uint16_t)(sign | (bits<uint32_t>(aligned) - 0x3f000000u));
    }
    uint32_t even = magnitude >> 13 & 1u;
    return (uint16_t)(sign | ((magnitude + 0xfffu + even - 0x38000000u) >> 13));
  }
  static float widen(uint16_t stored) {
    uint32_t sign = (uint32_t)(stored & 0x8000u) << 16, magnitude = stored & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x400u) {
      float value = (float)magnitude * 0x1p-24f;
      return sign ? -value : value;
    }
    return bits<float>(sign | ((magnitude << 13) + 0x38000000u));
  }
};

struct BFloat16 {
  static uint16_t narrow(float value) {
    uint32_t u = bits<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  static float widen(uint16_t stored) { return bits<float>((uint32_t)stored << 16); }
};

// double -> float rounded to odd, so that rounding the float once more is rounding the double.
inline float narrow_to_odd(double value) {
  float rounded = (float)value;
  if (rounded != rounded || (double)rounded == value || std::isinf(rounded)) return rounded;
  uint32_t u = bits<uint32_t>(rounded);
  if (std::fabs((double)rounded) > std::fabs(value)) --u;
  return bits<float>(u | 1u);
}

template <class Format>
struct Narrow {
  uint16_t stored;

  Narrow() = default;
  template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>>
  Narrow(T value)
      : stored(Format::narrow(std::is_same<T, float>::value ? (float)value
                                                            : narrow_to_odd((double)value))) {}
  operator float() const { return Format::widen(stored); }

  static Narrow from_bits(uint16_t stored) {
    Narrow result;
    result.stored = stored;
    return result;
  }

  friend Narrow operator+(Narrow a, Narrow b) { return Narrow((float)a + (float)b); }
  friend Narrow operator-(Narrow a, Narrow b) { return Narrow((float)a - (float)b); }
  friend Narrow operator*(Narrow a, Narrow b) { return Narrow((float)a * (float)b); }
  friend Narrow operator/(Narrow a, Narrow b) { return Narrow((float)a / (float)b); }
  friend Narrow operator-(Narrow a) { return from_bits((uint16_t)(a.stored ^ 0x8000u)); }
  friend bool operator==(Narrow a, Narrow b) { return (float)a == (float)b; }
  friend bool operator!=(Narrow a, Narrow b) { return (float)a != (float)b; }
  friend bool operator<(Narrow a, Narrow b) { return (float)a < (float)b; }
  friend bool operator<=(Narrow a, Narrow b) { return (float)a <= (float)b; }
  friend bool operator>(Narrow a, Narrow b) { return (float)a > (float)b; }
  friend bool operator>=(Narrow a, Narrow b) { return (float)a >= (float)b; }
  Narrow& operator+=(Narrow b) { return *this = *this + b; }
  Narrow& operator-=(Narrow b) { return *this = *this - b; }
  Narrow& operator*=(Narrow b) { return *this = *this * b; }
  Narrow& operator/=(Narrow b) { return *this = *this / b; }
};

template <class Format>
struct __align__(4) Narrow2 {
  Narrow<Format> x, y;
  Narrow2() = default;
  Narrow2(Narrow<Format> x, Narrow<Format> y) : x(x), y(y) {}
};

}  // namespace cusim

#define CUSIM_UNARY(NAME, FUNCTION)                        \
  template <class F>                                       \
  inline cusim::Narrow<F> NAME(cusim::Narrow<F> x) {       \
    return cusim::Narrow<F>(FUNCTION((float)x));           \
  }
CUSIM_UNARY(hexp, expf)
CUSIM_UNARY(hexp2, exp2f)
CUSIM_UNARY(hlog, logf)
CUSIM_UNARY(hlog2, log2f)
CUSIM_UNARY(hlog10, log10f)
CUSIM_UNARY(hsqrt, sqrtf)
CUSIM_UNARY(hrsqrt, rsqrtf)
CUSIM_UNARY(hsin, sinf)
CUSIM_UNARY(hcos, cosf)
CUSIM_UNARY(htanh, tanhf)
CUSIM_UNARY(hfloor, floorf)
CUSIM_UNARY(hceil, ceilf)
CUSIM_UNARY(htrunc, truncf)
CUSIM_UNARY(hrint, rintf)
CUSIM_UNARY(__habs, fabsf)
CUSIM_UNARY(__hneg, -)
#undef CUSIM_UNARY

#define CUSIM_BINARY(RESULT, NAME, EXPRESSION)                               \
  template <class F>                                                         \
  inline RESULT NAME(cusim::Narrow<F> a, cusim::Narrow<F> b) {               \
    return EXPRESSION;                                                       \
  }
CUSIM_BINARY(cusim::Narrow<F>, __hadd, a + b)
CUSIM_BINARY(cusim::Narrow<F>, __hsub, a - b)
CUSIM_BINARY(cusim::Narrow<F>, __hmul, a* b)
CUSIM_BINARY(cusim::Narrow<F>, __hdiv, a / b)
CUSIM_BINARY(cusim::Narrow<F>, __hmax, cusim::Narrow<F>(fmaxf(a, b)))
CUSIM_BINARY(cusim::Narrow<F>, __hmin, cusim::Narrow<F>(fminf(a, b)))
CUSIM_BINARY(bool, __heq, a == b)
CUSIM_BINARY(bool, __hne, a != b)
CUSIM_BINARY(bool, __hlt, a < b)
CUSIM_BINARY(bool, __hle, a <= b)
CUSIM_BINARY(bool, __hgt, a > b)
CUSIM_BINARY(bool, __hge, a >= b)
#undef CUSIM_BINARY

template <class F>
inline cusim::Narrow<F> __hfma(cusim::Narrow<F> a, cusim::Narrow<F> b, cusim::Narrow<F> c) {
  // In double the product is exact and the sum is rounded once, far below 16 bits' precision.
  return cusim::Narrow<F>((double)(float)a * (double)(float)b + (double)(float)c);
}

template <class F>
inline bool __hisnan(cusim::Narrow<F> x) {
  return x != x;
}
