// A whole engine on the device: tokens that are drawn there are those that the host draws from its
// logits, whatever a request asks for and whatever runs beside it.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "tests/cuda/cuda_test.h"
#include "tests/engine/model/model_runner.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;

// What comes out of a request.
struct Output {
  std::vector<int32_t> tokens;
  std::vector<std::optional<float>> logprobs;
  Status status;

  bool operator==(const Output& other) const {
    return tokens == other.tokens && logprobs == other.logprobs && status.ok() && other.status.ok();
  }
};

Output Read(EventStream* stream) {
  Output output;
  for (Event event;;) {
    if (!stream->TryPop(&event)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else if (const auto* token = std::get_if<TokenEvent>(&event)) {
      output.tokens.push_back(token->token);
      output.logprobs.push_back(token->logprob);
    } else if (const auto* finish = std::get_if<FinishEvent>(&event)) {
      output.status = finish->status;
      return output;
    }
  }
}

std::vector<GenerateParams> Wishes() {
  std::vector<GenerateParams> all(9);
  all[0].sampling.temperature = 0;
  all[1].sampling.top_k = 5;
  all[2].sampling.top_p = 0.7f;
  all[3].sampling.min_p = 0.1f;
  all[4].sampling.repetition_penalty = 1.4f;
  all[4].sampling.logit_bias = {{3, 2.0f}, {7, -5.0f}};
  all[5].logprobs = 2;  // of the host: the device cannot know what it would report
  all[6].sampling.temperature = 0;
  all[6].draft_tokens = 3;  // rows after a draft
  all[7].n = 2;
  all[7].best_of = 3;
  all[8].echo = true;
  all[8].logprobs = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].max_tokens = 7;
    all[i].ignore_eos = true;
    all[i].sampling.seed = 100 + i;
  }
  return all;
}

// All of them at once.
std::vector<Output> Serve(Backend* backend) {
  const auto folder = testing::SourceDir() / "tests/data/goldens/learned_sketch_mixed";
  const auto model = testing::LoadModel(folder, backend);
  EngineOptions options;
  options.max_sequences = 16;
  auto engine = Engine::Create(model.get(), nullptr, options);
  EXPECT_TRUE(engine.ok()) << engine.status().ToString();
  if (!engine.ok()) return {};
  std::vector<std::shared_ptr<EventStream>> streams;
  Random random(1);
  for (const GenerateParams& params : Wishes()) {
    GenerateRequest request;
    for (int64_t i = random.Int(2, 20); i >= 0; --i) {
      request.prompt.push_back(static_cast<int32_t>(random.Int(0, model->vocab_size() - 1)));
    }
    // What a draft may repeat.
    for (int i = 0; i < 3; ++i) request.prompt.push_back(request.prompt[static_cast<size_t>(i)]);
    request.params = params;
    streams.push_back(std::make_shared<EventStream>(1000));
    EXPECT_TRUE((*engine)->Submit(std::move(request), streams.back()).ok());
  }
  std::vector<Output> outputs;
  for (const auto& stream : streams) outputs.push_back(Read(stream.get()));
  return outputs;
}

using CudaServingTest = testing::CudaTest;

TEST_F(CudaServingTest, TokensDrawnOnTheDeviceAreTheHosts) {
  ASSERT_EQ(setenv("POLYSKETCH_CUDA_SAMPLING", "host", 1), 0);
  std::string reason;
  const auto host_draws = testing::NewBackendUnderTest(&reason);
  unsetenv("POLYSKETCH_CUDA_SAMPLING");
  ASSERT_FALSE(host_draws->samples_rows());
  ASSERT_TRUE(cuda_->device().samples_rows());
  const std::vector<Output> got = Serve(&cuda_->device()), want = Serve(host_draws.get());
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].tokens, want[i].tokens) << "element " << i;
    EXPECT_TRUE(got[i] == want[i]) << i << ": " << got[i].status.ToString();
    EXPECT_GE(got[i].tokens.size(), 7u) << i;
  }
}

}  // namespace
}  // namespace polysketch
