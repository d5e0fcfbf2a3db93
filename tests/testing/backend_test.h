// The base of tests that run once for each backend, or for each compiled instruction set of the cpu
// backend. Sets that this machine cannot run are skipped where everybody sees it. A program that is
// compiled with POLYSKETCH_TESTS_CUDA runs its tests on the cuda backend instead (tests/cuda/under_test.h).
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include "base/check.h"
#include "kernels/backend.h"
#include "kernels/new_backend.h"
#if defined(POLYSKETCH_TESTS_CUDA)
#include "tests/cuda/under_test.h"
#include "tests/testing/staged_backend.h"
#endif

namespace polysketch::testing {

inline bool MachineRuns(const std::string& isa) {
  const std::vector<std::string> supported = SupportedCpuIsas();
  return std::find(supported.begin(), supported.end(), isa) != supported.end();
}

// For INSTANTIATE_TEST_SUITE_P over AllBackends().
class BackendTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() != "reference" && GetParam() != "cuda" && !MachineRuns(GetParam())) {
      GTEST_SKIP() << "this machine cannot run " << GetParam();
    }
  }
  static std::unique_ptr<Backend> NewBackend(int threads) {
#if defined(POLYSKETCH_TESTS_CUDA)
    std::string reason;
    std::unique_ptr<Backend> cuda = NewBackendUnderTest(&reason);
    PS_CHECK(cuda != nullptr) << reason;
    return std::make_unique<StagedBackend>(std::move(cuda));
#endif
    if (GetParam() == "reference") return NewReferenceBackend();
    Result<std::unique_ptr<Backend>> backend = NewCpuBackend(threads, GetParam());
    PS_CHECK(backend.ok()) << backend.status().ToString();
    return std::move(backend).value();
  }
  // Whether the backend has AMX tiles, or their emulation.
  static bool HasTiles() { return GetParam().starts_with("avx512amx"); }
};

// For INSTANTIATE_TEST_SUITE_P over TestedIsas().
class IsaTest : public BackendTest {
 protected:
  // Whether products with weights of this type round activations to bf16.
  static bool RoundsToBf16(DataType weights) {
    return weights == DataType::kBf16 && (HasTiles() || GetParam() == "avx512bf16");
  }
};

// Under TSan only the fastest set of this machine: the sets share the code that synchronises threads.
inline std::vector<std::string> TestedIsas() {
#if defined(POLYSKETCH_TESTS_CUDA)
  return {"cuda"};
#elif defined(__SANITIZE_THREAD__)
  return {SupportedCpuIsas().back()};
#else
  return CompiledCpuIsas();
#endif
}

// Under TSan without the reference, which runs on one thread.
inline std::vector<std::string> AllBackends() {
  std::vector<std::string> names = TestedIsas();
#if !defined(__SANITIZE_THREAD__)
  names.insert(names.begin(), "reference");
#endif
  return names;
}

inline std::string ParamName(const ::testing::TestParamInfo<std::string>& info) {
  return info.param;
}

}  // namespace polysketch::testing
