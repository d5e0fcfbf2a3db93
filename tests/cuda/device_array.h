// Memory of the device under test, from the runtime itself: for interfaces that take raw pointers.
#pragma once

#include <cuda_runtime.h>

#include <vector>

#include <gtest/gtest.h>

namespace polysketch::testing {

template <typename T>
class TestArray {
 public:
  explicit TestArray(size_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), size * sizeof(T)), cudaSuccess);
  }
  explicit TestArray(const std::vector<T>& values) : TestArray(values.size()) {
    Copy(data_, values.data(), cudaMemcpyHostToDevice);
  }
  ~TestArray() { cudaFree(data_); }
  TestArray(const TestArray&) = delete;
  TestArray& operator=(const TestArray&) = delete;

  T* data() const { return data_; }
  size_t size() const { return size_; }
  // Waits for what was launched on the default stream before.
  std::vector<T> ToHost() const {
    std::vector<T> values(size_);
    Copy(values.data(), data_, cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void Copy(void* to, const void* from, cudaMemcpyKind kind) const {
    EXPECT_EQ(cudaMemcpyAsync(to, from, size_ * sizeof(T), kind, nullptr), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  }

  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace polysketch::testing
