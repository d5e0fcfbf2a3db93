// A float array for kernels under test: it begins one float off any vector alignment, and writes
// outside of it are found.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

namespace polysketch::testing {

class GuardedFloats {
 public:
  explicit GuardedFloats(size_t size) : storage_(size + 2 * kGuard, kCanary), size_(size) {}
  explicit GuardedFloats(const std::vector<float>& values) : GuardedFloats(values.size()) {
    std::copy(values.begin(), values.end(), data());
  }
  ~GuardedFloats() {
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(storage_[i], kCanary) << "write " << kGuard - i << " floats before an array";
      EXPECT_EQ(storage_[kGuard + size_ + i], kCanary) << "write " << i << " floats after an array";
    }
  }
  GuardedFloats(const GuardedFloats&) = delete;
  GuardedFloats& operator=(const GuardedFloats&) = delete;

  float* data() { return storage_.data() + kGuard; }
  const float* data() const { return storage_.data() + kGuard; }
  size_t size() const { return size_; }
  float operator[](size_t i) const { return data()[i]; }

 private:
  static constexpr size_t kGuard = 33;  // odd, and two vectors wide
  static constexpr float kCanary = -12345.678f;
  std::vector<float> storage_;
  size_t size_;
};

}  // namespace polysketch::testing
