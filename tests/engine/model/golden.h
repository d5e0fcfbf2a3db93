// What the authors' code computed of small models (tests/data/goldens).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/checkpoint/safetensors.h"
#include "tests/testing/environment.h"

namespace polysketch::testing {

inline constexpr const char* kGoldenCases[] = {"softmax",
                                               "polynomial_p4",
                                               "polynomial_p8",
                                               "random_sketch",
                                               "learned_sketch",
                                               "learned_sketch_mixed",
                                               "learned_sketch_mixed_d64_r32"};

inline std::filesystem::path GoldenFolder(const std::string& name) {
  return SourceDir() / "tests/data/goldens" / name;
}

// One recorded sequence of a case.
struct Golden {
  std::vector<int32_t> tokens;
  std::vector<float> logits;                           // [tokens, vocab]
  std::vector<float> next_logprobs;                    // [tokens - 1]
  double largest = 0;                                  // of the magnitudes of the logits
  double tolerance() const { return 2e-4 * largest; }  // of logits, with float32 weights and states
};

inline std::vector<Golden> ReadGoldens(const std::string& name) {
  const SafetensorsFile file = std::move(
      SafetensorsFile::Open((GoldenFolder(name) / "golden.safetensors").string()).value());
  const TensorView& tokens = file.tensors().find("tokens")->second;
  const TensorView& logits = file.tensors().find("logits")->second;
  const TensorView& logprobs = file.tensors().find("next_logprobs")->second;
  const int64_t length = logits.shape[1], vocab = logits.shape[2];
  std::vector<Golden> goldens(logits.shape[0]);
  for (int64_t i = 0; i < logits.shape[0]; ++i) {
    Golden& golden = goldens[i];
    golden.tokens.resize(length);
    golden.logits.resize(length * vocab);
    golden.next_logprobs.resize(length - 1);
    tokens.ReadInts(i * length, golden.tokens);
    logits.ReadFloats(i * length * vocab, golden.logits);
    logprobs.ReadFloats(i * (length - 1), golden.next_logprobs);
    for (const float logit : golden.logits)
      golden.largest = std::max<double>(golden.largest, std::abs(logit));
  }
  return goldens;
}

// The largest difference from the elements of `want`; a NaN if there is one.
inline double MaxError(const std::vector<float>& got, const std::vector<float>& want) {
  PS_CHECK(got.size() == want.size());
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - want[i]);
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

}  // namespace polysketch::testing
