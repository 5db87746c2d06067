// Stands in for PyTorch's header: what the published kernels use of it; none computes with it.
#pragma once
#include <algorithm>
#include <initializer_list>
namespace c10 {
template <class T>
struct alignas(2 * sizeof(T)) complex {
  T real_, imag_;
  __host__ __device__ complex(T real = T(), T imag = T()) : real_(real), imag_(imag) {}
};
template <class T>
__host__ __device__ complex<T> operator*(complex<T> a, complex<T> b) {
  return {a.real_ * b.real_ - a.imag_ * b.imag_, a.real_ * b.imag_ + a.imag_ * b.real_};
}
template <class T>
__host__ __device__ complex<T> operator+(complex<T> a, complex<T> b) {
  return {a.real_ + b.real_, a.imag_ + b.imag_};
}
}  // namespace c10
