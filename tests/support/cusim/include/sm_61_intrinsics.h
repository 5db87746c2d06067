// Included by sources that use 8-bit integers.  TVM's preamble defines the two mixed-sign forms of
// __dp4a with inline PTX; they are never called by a scan and, being unused, never assembled.
#pragma once

inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
  return c;
}

inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255u) * (b >> 8 * i & 255u);
  return c;
}
