// Quotients by what is constant in a launch, without a division.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace polysketch::cuda {

class Divisor {
 public:
  Divisor() = default;
  explicit Divisor(int64_t value)
      : value_(static_cast<int>(value)),
        reciprocal_(static_cast<uint32_t>(((int64_t{1} << 31) + value - 1) / value)) {}
  __host__ __device__ int value() const { return value_; }
  // n / value, if n times value is at most 2^31: n times the reciprocal is above 2^31 n / value by
  // less than n, so that the quotient is too large by less than 1 / value.
  __device__ __forceinline__ int Quotient(int n) const {
    const uint32_t twice = 2u * static_cast<uint32_t>(n);
#if defined(__CUDACC__)
    return static_cast<int>(__umulhi(twice, reciprocal_));
#else
    return static_cast<int>(uint64_t{twice} * reciprocal_ >> 32);
#endif
  }

 private:
  int value_ = 1;
  uint32_t reciprocal_ = uint32_t{1} << 31;  // 2^31 / value, rounded up
};

}  // namespace polysketch::cuda
