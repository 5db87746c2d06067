#pragma once

#include "cusim_narrow.h"

using __nv_bfloat16 = cusim::Narrow<cusim::BFloat16>;
using nv_bfloat16 = __nv_bfloat16;
using __nv_bfloat162 = cusim::Narrow2<cusim::BFloat16>;
using nv_bfloat162 = __nv_bfloat162;

inline nv_bfloat16 __float2bfloat16(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __float2bfloat16_rn(float x) { return nv_bfloat16(x); }
inline nv_bfloat16 __double2bfloat16(double x) { return nv_bfloat16(x); }
inline float __bfloat162float(nv_bfloat16 x) { return (float)x; }
inline nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return nv_bfloat16::from_bits(x); }
inline unsigned short __bfloat16_as_ushort(nv_bfloat16 x) { return x.stored; }
