// The base of the tests of this folder.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include "kernels/new_backend.h"
#include "tests/cuda/under_test.h"
#include "tests/kernels/noisy.h"
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

  // Gradients: the largest share of the tolerance that an element took.
  static double Compare(const std::vector<float>& got, const std::vector<double>& want,
                        const std::vector<double>& deviation, const std::string& what) {
    EXPECT_EQ(got.size(), want.size()) << what;
    double worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      // Sums are float32: of up to 2^10 terms of both signs, whose size the deviations know by 2^-8.
      const double tolerance = kDeviations * deviation[i] + 0x1p-20 * std::abs(want[i]) + 1e-30;
      const double share = std::abs(got[i] - want[i]) / tolerance;
      if (!(share <= 1)) {
        ADD_FAILURE() << what << " element " << i << ": expected " << want[i] << " +- " << tolerance
                      << ", found " << got[i];
        return share;
      }
      worst = std::max(worst, share);
    }
    return worst;
  }

  std::unique_ptr<StagedBackend> cuda_;
  std::unique_ptr<Backend> reference_ = NewReferenceBackend();
};

// Unit roundoff of bf16 and of f16: half the distance between neighbours above 1. bf16 has 8
// significant bits (one of them implied), so neighbours in [1, 2) are 2^-7 apart; f16 has 11.
inline constexpr double kBf16U = 0x1p-8;
inline constexpr double kF16U = 0x1p-11;

}  // namespace polysketch::testing
