// Tensor cores: `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`.
//
// Lane l holds, of A (16 x 8), in register r the cell (l / 4 + 8 (r % 2), l % 4 + 4 (r / 2)); of B
// (8 x 8) the cell (l % 4 + 4 r, l / 4); of C and D (16 x 8) the cell (l / 4 + 8 (r / 2),
// 2 (l % 4) + r % 2): PTX ISA, "Matrix Fragments for mma.m16n8k8".
//
// Of an operand the low 13 bits are ignored.  Products are exact.  PTX leaves the rounding of their
// sum open; here it is the coarsest that was found on a device (Fasi, Higham, Mikaitis and Pranesh,
// 2021, PeerJ Computer Science 7:e330): all nine terms are cut to the 24 bits of the largest one,
// their sum is exact, and is cut to a float32.  Later devices keep a few bits more.

#include <cmath>
#include <cstring>

#include "runtime.h"

namespace cusim {
namespace {

double tf32(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bool is_nan = value != value;
  bits &= 0xffffe000u;
  if (is_nan) bits |= 0x00400000u;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

float cut(double sum) {
  float nearest = (float)sum;
  return std::isfinite(nearest) && std::fabs((double)nearest) > std::fabs(sum)
             ? std::nextafterf(nearest, 0.0f)
             : nearest;
}

float sum_of(const double (&terms)[9]) {
  double plain = 0, largest = 0;
  for (double term : terms) {
    plain += term;
    largest = std::fmax(largest, std::fabs(term));
  }
  if (!std::isfinite(plain) || largest == 0) return (float)plain;
  double quantum = std::ldexp(1.0, std::ilogb(largest) - 23), sum = 0;
  for (double term : terms) sum += std::trunc(term / quantum) * quantum;
  return cut(sum);
}

}  // namespace

void multiply_fragments(MatrixFragment* const* lanes) {
  double a[16][8], b[8][8];
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int r = 0; r < 4; ++r)
      a[lane / 4 + 8 * (r % 2)][lane % 4 + 4 * (r / 2)] = tf32(lanes[lane]->a[r]);
    for (int r = 0; r < 2; ++r) b[lane % 4 + 4 * r][lane / 4] = tf32(lanes[lane]->b[r]);
  }
  for (int lane = 0; lane < kWarp; ++lane)
    for (int r = 0; r < 4; ++r) {
      int row = lane / 4 + 8 * (r / 2), column = 2 * (lane % 4) + r % 2;
      double terms[9] = {lanes[lane]->c[r]};
      for (int k = 0; k < 8; ++k) terms[k + 1] = a[row][k] * b[k][column];
      lanes[lane]->c[r] = sum_of(terms);
    }
}

}  // namespace cusim
