// The base of the tests of this folder.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include <gtest/gtest.h>
#include "kernels/new_backend.h"
#include "tests/cuda/under_test.h"
#include "tests/testing/environment.h"
#include "tests/testing/staged_backend.h"

namespace polysketch::testing {

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    std::unique_ptr<Backend> backend = NewBackendUnderTest(&reason);
    if (backend == nullptr) {
      // scripts/gpu-check: a GPU that cannot be opened must not pass for tests that passed.
      ASSERT_EQ(std::getenv("POLYSKETCH_REQUIRE_GPU"), nullptr) << reason;
      GTEST_SKIP() << reason;
    }
    cuda_ = std::make_unique<StagedBackend>(std::move(backend));
  }
  void TearDown() override {
    if (cuda_ == nullptr) return;
    EXPECT_TRUE(cuda_->status().ok()) << cuda_->status().ToString();
  }

  // How much to run: under the emulation; on a GPU.
  static int Scale(int emulated, int device) {
    return Emulated() ? Count(emulated, device) : device;
  }

  std::unique_ptr<StagedBackend> cuda_;
  std::unique_ptr<Backend> reference_ = NewReferenceBackend();
};

// Unit roundoff of bf16 and of f16: half the distance between neighbours above 1. bf16 has 8
// significant bits (one of them implied), so neighbours in [1, 2) are 2^-7 apart; f16 has 11.
inline constexpr double kBf16U = 0x1p-8;
inline constexpr double kF16U = 0x1p-11;

}  // namespace polysketch::testing
