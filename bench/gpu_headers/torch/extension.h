// Stands in for PyTorch's header: a contiguous tensor of three axes on the device.
#pragma once
#include <array>
#include <cstdlib>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#define TORCH_CHECK(condition, ...) \
  do {                              \
    if (!(condition)) abort();      \
  } while (0)

namespace at {
enum class ScalarType { BFloat16, Half, Float };
class Tensor {
 public:
  Tensor(const void* data, ScalarType type, long batch, long dim, long length)
      : data_(const_cast<void*>(data)), type_(type), sizes_{batch, dim, length} {}
  std::array<long, 3> sizes() const { return sizes_; }
  std::array<long, 3> strides() const { return {sizes_[1] * sizes_[2], sizes_[2], 1}; }
  long size(int axis) const { return sizes_[axis < 0 ? axis + 3 : axis]; }
  long stride(int axis) const { return strides()[axis < 0 ? axis + 3 : axis]; }
  bool is_cuda() const { return true; }
  bool is_contiguous() const { return true; }
  ScalarType scalar_type() const { return type_; }
  void* data_ptr() const { return data_; }
  template <class T>
  T* data_ptr() const { return static_cast<T*>(data_); }

 private:
  void* data_;
  ScalarType type_;
  std::array<long, 3> sizes_;
};
}  // namespace at
