// The prefix cache with real models of every kind, and mixtures of them: what is found, and that
// the output is that of a cold run, bit for bit.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/model/folder_model.h"
#include "engine/prefix_cache/prefix_cache.h"
#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "kernels/new_backend.h"
#include "tests/engine/testing/collected.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"
#include "tests/testing/random_model.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::Random;
using Tokens = std::vector<int32_t>;

// Of tests/data/frames: some layers have windows with a far part.
constexpr char kFarWindows[] = "llama_window_far";

std::vector<std::string> Models() {
  std::vector<std::string> names = testing::TinyModelNames();
  names.emplace_back(kFarWindows);
  return names;
}

class PrefixModelsTest : public ::testing::TestWithParam<std::string> {
 protected:
  PrefixModelsTest() : random_(1) {
    std::filesystem::path model = testing::SourceDir() / "tests/data/frames" / kFarWindows;
    if (GetParam() != kFarWindows) {
      model = folder_.path();
      testing::WriteRandomModel(model, testing::TinyConfig(GetParam()), DataType::kF32, 3);
    }
    backend_ = NewCpuBackend(2).value();
    LoadOptions options;
    options.max_step_tokens = 40;
    model_ = FolderModel::Load(model.string(), backend_.get(), options).value();
    context_ = {.vocab_size = model_->vocab_size(), .max_step_tokens = 40, .observer = &observer_};
    const std::vector<AttentionSpec> layers = model_->spec().Attention();
    whole_ = std::ranges::all_of(layers, &AttentionSpec::grows);
  }

  std::unique_ptr<Scheduler> NewScheduler(PrefixCache* cache) {
    context_.prefix_cache = cache;
    return std::make_unique<Scheduler>(
        model_.get(), context_,
        SchedulerOptions{.max_sequences = 4,
                         .slot_memory = 6 * model_->StateBytes(1000),
                         .preempted_memory = model_->StateBytes(1000),
                         .stall_deadline = std::chrono::hours(1000)});
  }
  std::unique_ptr<Sequence> NewSequence(const GenerateRequest& request, RequestId id,
                                        const std::shared_ptr<EventStream>& stream) const {
    return std::make_unique<GenerateSequence>(context_, id, request, *request.params.max_tokens, 5,
                                              stream);
  }
  Collected Run(const GenerateRequest& request, PrefixCache* cache) {
    const auto scheduler = NewScheduler(cache);
    const auto stream = std::make_shared<EventStream>(100000);
    scheduler->Add(NewSequence(request, 1, stream));
    while (scheduler->Tick()) {
    }
    Collected got;
    got.Drain(stream.get());
    PS_CHECK(got.finish && got.finish->status.ok());
    return got;
  }
  // The output, and that it is the cold one.
  Collected Ask(const Tokens& prompt, PrefixCache* cache, int32_t max_tokens = 20) {
    GenerateRequest request;
    request.prompt = prompt;
    request.params.max_tokens = max_tokens;
    request.params.ignore_eos = true;
    request.params.logprobs = 3;
    Collected got = Run(request, cache);
    ExpectSame(got, Run(request, nullptr));
    return got;
  }
  static void ExpectSame(const Collected& got, const Collected& cold) {
    EXPECT_EQ(got.tokens, cold.tokens);
    EXPECT_EQ(got.logprobs, cold.logprobs);  // floats, compared exactly
    ASSERT_EQ(got.tops.size(), cold.tops.size());
    for (size_t i = 0; i < got.tops.size(); ++i) {
      ASSERT_EQ(got.tops[i].size(), cold.tops[i].size());
      for (size_t j = 0; j < got.tops[i].size(); ++j) {
        EXPECT_EQ(got.tops[i][j].token, cold.tops[i][j].token);
        EXPECT_EQ(got.tops[i][j].logprob, cold.tops[i][j].logprob);
      }
    }
  }
  Tokens Some(int64_t n) {
    Tokens tokens(static_cast<size_t>(n));
    for (int32_t& token : tokens)
      token = static_cast<int32_t>(random_.Int(0, model_->vocab_size() - 1));
    return tokens;
  }

  testing::TemporaryFolder folder_;
  Random random_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<FolderModel> model_;
  EngineObserver observer_;
  SequenceContext context_;
  bool whole_ = false;  // every layer keeps all tokens
};

Tokens Joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_P(PrefixModelsTest, ASharedBeginning) {
  PrefixCache cache({.memory = size_t{64} << 20, .min_tokens = 16, .every = 4096});
  const Tokens system = Some(43);
  for (int user = 0; user < 5; ++user) {
    Tokens prompt = system;
    prompt.push_back(user);
    prompt = Joined(std::move(prompt), Some(30));
    const int64_t cached = Ask(prompt, &cache).finish->usage.cached_tokens;
    EXPECT_LE(cached, user == 0 ? 0 : 43);
    // The second stores what the third finds.
    EXPECT_GE(cached, user > (whole_ ? 0 : 1) ? 43 : 0) << "user " << user;
    EXPECT_TRUE(!whole_ || cache.stats().entries == user + 1) << "one state for each user";
  }
  // A point that the request names is for the second.
  GenerateRequest request;
  const Tokens other = Some(50);
  request.cache.points = {37};
  for (const bool first : {true, false}) {
    request.prompt = Joined(other, Some(20));
    request.prompt[37] = first ? 1 : 2;
    request.params.max_tokens = 1;
    EXPECT_EQ(Run(request, &cache).finish->usage.cached_tokens, first ? 0 : 37);
  }
}

TEST_P(PrefixModelsTest, AConversationCostsItsNewTokens) {
  PrefixCache cache({.memory = size_t{64} << 20, .min_tokens = 16, .every = 4096});
  for (const int drafts : {0, 4}) {
    context_.draft_tokens = drafts;
    Tokens conversation = Some(30);
    for (int turn = 0; turn < 6; ++turn) {
      const Tokens before = conversation;
      conversation = Joined(std::move(conversation), Some(17));
      const Collected got = Ask(conversation, &cache);
      // All but the last token of the answer, which was not processed.
      const int64_t known = turn == 0 ? 0 : std::ssize(before) - 1;
      EXPECT_EQ(got.finish->usage.cached_tokens, known) << turn;
      // The answer again: its prompt is there.
      if (turn == 3) {
        const Collected again = Ask(conversation, &cache);
        EXPECT_GE(again.finish->usage.cached_tokens, std::ssize(before) - 1);
        EXPECT_EQ(again.tokens, got.tokens);
      }
      conversation = Joined(std::move(conversation), got.tokens);
    }
    EXPECT_TRUE(!whole_ || cache.stats().entries == (drafts == 0 ? 1 : 2)) << "the longest";
  }
}

// Many at once, with memory for a few states.
TEST_P(PrefixModelsTest, TheOutputIsThatOfAColdRun) {
  PrefixCache cache(
      {.memory = 6 * (model_->StateBytes(100) + 2000), .min_tokens = 12, .every = 32});
  std::vector<Tokens> histories = {Some(40)};
  for (int round = 0; round < testing::Count(12, 300); ++round) {
    context_.draft_tokens = static_cast<int>(random_.Int(0, 4));
    const auto scheduler = NewScheduler(&cache);
    std::vector<GenerateRequest> requests;
    std::vector<std::shared_ptr<EventStream>> streams;
    for (int i = 0; i < 6; ++i) {
      GenerateRequest& request = requests.emplace_back();
      request.prompt = histories[static_cast<size_t>(random_.Int(0, std::ssize(histories) - 1))];
      request.prompt.resize(static_cast<size_t>(random_.Int(1, std::ssize(request.prompt))));
      request.prompt = Joined(std::move(request.prompt), Some(random_.Int(1, 30)));
      request.params.max_tokens = static_cast<int32_t>(random_.Int(1, 30));
      request.params.logprobs = 1;
      if (random_.Uniform() < 0.2) request.cache.points = {random_.Int(1, 60)};
      streams.push_back(std::make_shared<EventStream>(100000));
      scheduler->Add(NewSequence(request, static_cast<RequestId>(i + 1), streams.back()));
      if (random_.Uniform() < 0.5) scheduler->Tick();
    }
    while (scheduler->Tick()) {
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      Collected got;
      got.Drain(streams[i].get());
      ASSERT_TRUE(got.finish && got.finish->status.ok());
      ExpectSame(got, Run(requests[i], nullptr));
      ASSERT_FALSE(HasFailure()) << "round " << round << ", request " << i;
      const Tokens history = Joined(requests[i].prompt, got.tokens);
      if (histories.size() < 6) {
        histories.push_back(history);
      } else if (std::ssize(history) < 200) {
        histories[static_cast<size_t>(random_.Int(0, 5))] = history;
      }
    }
    ASSERT_LE(cache.stats().bytes, cache.memory());
  }
  EXPECT_GT(cache.stats().hit_tokens, 100);
  EXPECT_GT(cache.stats().evicted, 5);
}

INSTANTIATE_TEST_SUITE_P(Kinds, PrefixModelsTest, ::testing::ValuesIn(Models()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace polysketch
