#pragma once

#include "cusim_narrow.h"

using __half = cusim::Narrow<cusim::Binary16>;
using half = __half;
using __half2 = cusim::Narrow2<cusim::Binary16>;
using half2 = __half2;

inline half2 make_half2(half x, half y) { return half2(x, y); }
inline half2 __halves2half2(half x, half y) { return half2(x, y); }
inline half __float2half(float x) { return half(x); }
inline half __float2half_rn(float x) { return half(x); }
inline half __double2half(double x) { return half(x); }
inline float __half2float(half x) { return (float)x; }
inline half __ushort_as_half(unsigned short x) { return half::from_bits(x); }
inline unsigned short __half_as_ushort(half x) { return x.stored; }
