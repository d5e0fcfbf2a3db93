// A recurrent kind that computes what a kind with a KV cache does.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/engine/model/model_runner.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch::testing {

// The logits of a random model of `config`, a recurrent kind, for any split of a sequence, are
// those of the model of kind `cached` with the same tensors.
inline void ExpectLogitsOfTheCachedKind(ModelConfig config, AttentionKind cached,
                                        Backend* backend) {
  constexpr int kTokens = 50;  // six blocks and a part
  Random random(2);
  const TemporaryFolder recurrent_folder, cached_folder;
  WriteRandomModel(recurrent_folder.path(), config, DataType::kF32, 5);
  config.attention = cached;
  WriteRandomModel(cached_folder.path(), config, DataType::kF32, 5);
  std::vector<int32_t> tokens(kTokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Int(0, config.vocab_size - 1));

  const auto model = LoadModel(recurrent_folder.path(), backend);
  EXPECT_FALSE(model->attention().front().kv_cache());
  const std::vector<float> want =
      LogitsOf(*LoadModel(cached_folder.path(), backend), tokens, {kTokens});
  double largest = 0;
  for (const float logit : want) largest = std::max<double>(largest, std::abs(logit));
  for (const std::vector<int>& parts :
       {std::vector<int>{kTokens}, std::vector<int>(kTokens, 1), random.Split(kTokens)}) {
    const std::vector<float> got = LogitsOf(*model, tokens, parts);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 2e-4 * largest) << i;  // the tolerance of golden_test.cc
  }
}

}  // namespace polysketch::testing
