// What one request makes of the rows it gets: driven through a scheduler that runs nothing else.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/score_sequence.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/collected.h"
#include "tests/engine/testing/fake_model.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::FakeModel;
using testing::FakeTokenizer;
using testing::kFakeEos;
using testing::kFakeVocab;
using testing::Random;

class SequenceTest : public ::testing::Test {
 protected:
  Collected Generate(const std::vector<int32_t>& prompt, const GenerateParams& params,
                     bool tokenizer = true) {
    context_.tokenizer = tokenizer ? &tokenizer_ : nullptr;
    auto stream = std::make_shared<EventStream>(1000);
    GenerateRequest request{{}, prompt, params};
    const uint64_t seed = params.sampling.seed.value_or(5);
    return Run(std::make_unique<GenerateSequence>(context_, 1, request,
                                                  params.max_tokens.value_or(200), seed, stream),
               stream);
  }
  Collected Score(const std::vector<int32_t>& tokens) {
    auto feed = std::make_shared<TokenFeed>(100);
    feed->Push(tokens);
    feed->Close();
    auto stream = std::make_shared<EventStream>(1000);
    return Run(std::make_unique<ScoreSequence>(context_, 1, ScoreRequest{{}, feed}, stream),
               stream);
  }
  Collected Run(std::unique_ptr<Sequence> sequence, const std::shared_ptr<EventStream>& stream) {
    Scheduler scheduler(
        &model_, context_,
        {.max_sequences = 1, .slot_memory = 100, .stall_deadline = std::chrono::hours(1)});
    scheduler.Add(std::move(sequence));
    Collected out;
    for (int i = 0; i < 10000 && !out.finish; ++i) {
      EXPECT_TRUE(scheduler.Tick());
      out.Drain(stream.get());
    }
    EXPECT_TRUE(out.finish.has_value());
    EXPECT_EQ(scheduler.running(), 0);
    EXPECT_EQ(scheduler.states().reserved(), 0u);
    return out;
  }
  // Greedy tokens by the model's definition alone.
  static std::vector<int32_t> GreedyOracle(const std::vector<int32_t>& prompt, int count) {
    uint64_t hash = 0;
    for (const int32_t token : prompt) hash = FakeModel::Next(hash, token);
    std::vector<int32_t> tokens;
    while (static_cast<int>(tokens.size()) < count) {
      int32_t best = 0;
      for (int32_t t = 1; t < kFakeVocab; ++t) {
        if (FakeModel::Logit(hash, t) > FakeModel::Logit(hash, best)) best = t;
      }
      tokens.push_back(best);
      hash = FakeModel::Next(hash, best);
    }
    return tokens;
  }
  std::string Text(const std::vector<int32_t>& tokens) const {
    IncrementalDecoder decoder(&tokenizer_, true);
    std::string text;
    for (const int32_t token : tokens) text += decoder.Append(token);
    return text + decoder.Finish();
  }
  static double LogprobOracle(const std::vector<int32_t>& history, int32_t token) {
    uint64_t hash = 0;
    for (const int32_t t : history) hash = FakeModel::Next(hash, t);
    double sum = 0;
    for (int32_t t = 0; t < kFakeVocab; ++t)
      sum += std::exp(static_cast<double>(FakeModel::Logit(hash, t)));
    return FakeModel::Logit(hash, token) - std::log(sum);
  }
  static GenerateParams Greedy(int max_tokens) {
    GenerateParams params;
    params.sampling.temperature = 0;
    params.max_tokens = max_tokens;
    params.ignore_eos = true;
    return params;
  }
  static std::vector<int32_t> Prompt(int size) {
    std::vector<int32_t> prompt(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) prompt[static_cast<size_t>(i)] = i * 7 % 59;
    return prompt;
  }

  FakeModel model_;
  FakeTokenizer tokenizer_;
  EngineObserver observer_;
  SequenceContext context_{.vocab_size = kFakeVocab,
                           .eos_ids = {kFakeEos},
                           .max_step_tokens = 32,
                           .observer = &observer_};
};

TEST_F(SequenceTest, GreedyTokensOfTheModel) {
  for (const int size : {1, 31, 32, 33, 200}) {
    const Collected out = Generate(Prompt(size), Greedy(40));
    EXPECT_EQ(out.tokens, GreedyOracle(Prompt(size), 40));
    EXPECT_EQ(out.finish->reason, FinishReason::kLength);
    EXPECT_TRUE(out.finish->status.ok());
    EXPECT_EQ(out.finish->usage.prompt_tokens, size);
    EXPECT_EQ(out.finish->usage.completion_tokens, 40);
    EXPECT_TRUE(out.echoed.empty());
    EXPECT_EQ(out.logprobs[0], std::nullopt);
    const Timings& t = out.finish->timings;
    EXPECT_EQ(t.queue + t.prefill + t.decode, t.total);
    EXPECT_LE(t.first_token, t.total);
    EXPECT_GT(t.first_token.count(), 0);
  }
}

TEST_F(SequenceTest, LogprobsFromAToken) {
  GenerateParams params = Greedy(3);
  params.logprobs = 1;
  params.echo = true;
  const Collected whole = Generate(Prompt(70), params);
  for (const int64_t from : {0, 1, 2, 31, 32, 33, 69, 70, 1000}) {
    params.logprobs_from = from;
    const Collected out = Generate(Prompt(70), params);
    EXPECT_EQ(out.echoed, Prompt(70));
    EXPECT_EQ(out.tokens, whole.tokens);
    EXPECT_EQ(out.text, whole.text);
    ASSERT_EQ(out.logprobs.size(), whole.logprobs.size());
    for (int64_t i = 0; i < std::ssize(out.logprobs); ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_EQ(out.logprobs[at],
                i < std::min<int64_t>(from, 70) ? std::nullopt : whole.logprobs[at])
          << from << " " << i;
      EXPECT_EQ(out.tops[at].empty(), !out.logprobs[at].has_value());
    }
  }
}

TEST_F(SequenceTest, TextIsWhatTheTokensDecodeTo) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    GenerateParams params = Greedy(100);
    params.sampling.temperature = 1;
    params.sampling.seed = seed;
    const Collected out = Generate(Prompt(5), params);
    EXPECT_EQ(out.finish->seed, seed);
    EXPECT_EQ(out.text, Text(out.tokens));
  }
}

TEST_F(SequenceTest, LogprobsAreTheModels) {
  GenerateParams params = Greedy(10);
  params.logprobs = 3;
  params.sampling.temperature = 1.7f;  // none of this changes them
  params.sampling.top_k = 5;
  params.sampling.repetition_penalty = 1.3f;
  params.sampling.seed = 1;
  params.echo = true;
  std::vector<int32_t> history = Prompt(70);
  const Collected out = Generate(history, params);
  EXPECT_EQ(out.echoed, history);
  ASSERT_EQ(out.logprobs.size(), 80u);
  EXPECT_EQ(out.logprobs[0], std::nullopt);
  EXPECT_TRUE(out.tops[0].empty());
  history.insert(history.end(), out.tokens.begin(), out.tokens.end());
  for (size_t i = 1; i < history.size(); ++i) {
    const std::vector<int32_t> before(history.begin(), history.begin() + static_cast<ptrdiff_t>(i));
    ASSERT_TRUE(out.logprobs[i].has_value());
    EXPECT_NEAR(*out.logprobs[i], LogprobOracle(before, history[i]), 2e-6);
    ASSERT_EQ(out.tops[i].size(), 3u);
    EXPECT_GE(out.tops[i][0].logprob, out.tops[i][1].logprob);
    EXPECT_NEAR(out.tops[i][0].logprob, LogprobOracle(before, out.tops[i][0].token), 2e-6);
    EXPECT_GE(out.tops[i][0].logprob, *out.logprobs[i]);
  }
}

TEST_F(SequenceTest, EchoWithoutLogprobs) {
  GenerateParams params = Greedy(3);
  params.echo = true;
  const Collected out = Generate(Prompt(70), params);
  EXPECT_EQ(out.echoed, Prompt(70));
  EXPECT_EQ(out.tokens, GreedyOracle(Prompt(70), 3));
}

TEST_F(SequenceTest, NoTokensWanted) {
  for (const bool echo : {false, true}) {
    for (const bool logprobs : {false, true}) {
      GenerateParams params = Greedy(0);
      params.echo = echo;
      if (logprobs) params.logprobs = 0;
      const Collected out = Generate(Prompt(70), params);
      EXPECT_TRUE(out.tokens.empty());
      EXPECT_EQ(out.echoed.size(), echo ? 70u : 0u);
      EXPECT_EQ(out.finish->reason, FinishReason::kLength);
      EXPECT_EQ(out.finish->usage.completion_tokens, 0);
      EXPECT_EQ(out.finish->timings.first_token.count(), 0);
      for (size_t i = 1; i < out.logprobs.size(); ++i)
        EXPECT_EQ(out.logprobs[i].has_value(), logprobs);
    }
  }
}

TEST_F(SequenceTest, StopIdsAndEos) {
  const std::vector<int32_t> greedy = GreedyOracle(Prompt(9), 40);
  GenerateParams params = Greedy(40);
  params.stop_token_ids = {greedy[6], 63};
  Collected out = Generate(Prompt(9), params);
  const auto first = std::find(greedy.begin(), greedy.end(), greedy[6]);
  EXPECT_EQ(out.tokens, std::vector<int32_t>(greedy.begin(), first + 1));
  EXPECT_EQ(out.finish->reason, FinishReason::kStop);
  EXPECT_EQ(out.finish->matched_stop, "");
  EXPECT_EQ(out.finish->stop_token, greedy[6]);
  const std::string with_stop = Text(out.tokens);
  out.tokens.pop_back();
  EXPECT_EQ(out.text, Text(out.tokens));
  EXPECT_NE(out.text, with_stop);
  params.include_stop_in_output = true;
  EXPECT_EQ(Generate(Prompt(9), params).text, with_stop);

  // EOS is a token like others when it is ignored.
  GenerateParams eos = Greedy(40);
  eos.sampling.logit_bias = {{kFakeEos, 100.0f}};
  out = Generate(Prompt(9), eos);
  EXPECT_EQ(out.tokens.size(), 40u);
  EXPECT_EQ(out.finish->reason, FinishReason::kLength);
  eos.ignore_eos = false;
  out = Generate(Prompt(9), eos);
  EXPECT_EQ(out.tokens, std::vector<int32_t>{kFakeEos});
  EXPECT_EQ(out.finish->reason, FinishReason::kStop);
  EXPECT_EQ(out.finish->stop_token, std::nullopt);
  EXPECT_EQ(out.text, "");
}

TEST_F(SequenceTest, AnyOfTheEosIdsEndsAnOutput) {
  const std::vector<int32_t> greedy = GreedyOracle(Prompt(9), 40);
  const auto end = std::find(greedy.begin(), greedy.end(), greedy[6]);
  context_.eos_ids = {kFakeEos, 63, greedy[6]};
  EXPECT_EQ(Generate(Prompt(9), Greedy(40)).tokens, greedy);  // ignores them
  GenerateParams params = Greedy(40);
  params.ignore_eos = false;
  for (const int drafts : {0, 4}) {
    params.draft_tokens = drafts;
    const Collected out = Generate(Prompt(9), params);
    EXPECT_EQ(out.tokens, std::vector<int32_t>(greedy.begin(), end + 1));
    EXPECT_EQ(out.text, Text(std::vector<int32_t>(greedy.begin(), end)));
    EXPECT_EQ(out.finish->reason, FinishReason::kStop);
    EXPECT_EQ(out.finish->stop_token, greedy[6]);
  }
  // A stop token of the request is reported, EOS among them if it is no EOS of this request.
  params.sampling.logit_bias = {{kFakeEos, 100.0f}};
  params.stop_token_ids = {kFakeEos};
  EXPECT_EQ(Generate(Prompt(9), params).finish->stop_token, std::nullopt);
  params.ignore_eos = true;
  EXPECT_EQ(Generate(Prompt(9), params).finish->stop_token, kFakeEos);
}

TEST_F(SequenceTest, StopStrings) {
  Random random(3);
  for (uint64_t seed = 0; seed < 300; ++seed) {
    GenerateParams params = Greedy(60);
    params.sampling.temperature = 1;
    params.sampling.seed = seed;
    const std::string free = Generate(Prompt(4), params).text;
    const auto at = static_cast<size_t>(random.Int(0, static_cast<int64_t>(free.size()) - 4));
    std::string stop = free.substr(at, static_cast<size_t>(random.Int(1, 4)));
    if ((static_cast<unsigned char>(stop[0]) & 0x80) != 0) continue;  // part of a character
    params.stop = {"no such text", stop};
    params.include_stop_in_output = random.Uniform() < 0.5;
    const Collected out = Generate(Prompt(4), params);
    const size_t found = free.find(stop);
    EXPECT_EQ(out.text, free.substr(0, found + (params.include_stop_in_output ? stop.size() : 0)));
    EXPECT_EQ(out.finish->reason, FinishReason::kStop);
    EXPECT_EQ(out.finish->matched_stop, stop);
  }
  // One that never comes: the text it held back is not lost.
  GenerateParams params = Greedy(5);
  const std::string free = Generate(Prompt(4), params).text;
  params.stop = {free.substr(free.size() - 1) + "\n never"};
  EXPECT_EQ(Generate(Prompt(4), params).text, free);
}

TEST_F(SequenceTest, WithoutTokenizerThereIsNoText) {
  const Collected out = Generate(Prompt(4), Greedy(20), false);
  EXPECT_EQ(out.tokens, GreedyOracle(Prompt(4), 20));
  EXPECT_EQ(out.text, "");
}

TEST_F(SequenceTest, PromptThatEndsInsideACharacter) {
  // E2 82 in the prompt, AC forced as the first token: the euro sign comes out whole.
  GenerateParams params = Greedy(1);
  params.sampling.logit_bias = {{62, 100.0f}};
  EXPECT_EQ(Generate({5, 60, 61}, params).text, "\xE2\x82\xAC");
  params.echo = true;
  EXPECT_EQ(Generate({5, 60, 61}, params).text, "C\xE2\x82\xAC");
}

TEST_F(SequenceTest, NotFiniteLogitsAreAnError) {
  const std::vector<int32_t> prompt = Prompt(40);
  uint64_t hash = 0;
  for (int i = 0; i < 20; ++i) hash = FakeModel::Next(hash, prompt[static_cast<size_t>(i)]);
  model_.poisoned_hash = hash;
  EXPECT_EQ(Generate(prompt, Greedy(3)).finish->reason,
            FinishReason::kLength);  // that row was not wanted
  GenerateParams params = Greedy(3);
  params.echo = true;
  params.logprobs = 1;
  Collected out = Generate(prompt, params);
  EXPECT_EQ(out.finish->reason, FinishReason::kError);
  EXPECT_EQ(out.finish->status.code(), Code::kInternal);
  EXPECT_EQ(out.echoed.size(), 20u);
  out = Score(prompt);
  EXPECT_EQ(out.finish->reason, FinishReason::kError);
  out = Generate(std::vector<int32_t>(prompt.begin(), prompt.begin() + 20), Greedy(3));
  EXPECT_EQ(out.finish->reason, FinishReason::kError);
  EXPECT_TRUE(out.tokens.empty());
}

TEST_F(SequenceTest, Scores) {
  for (const int size : {1, 2, 32, 33, 34, 150}) {
    const std::vector<int32_t> tokens = Prompt(size);
    const Collected out = Score(tokens);
    EXPECT_EQ(out.finish->reason, FinishReason::kStop) << out.finish->status.ToString();
    EXPECT_EQ(out.finish->usage.prompt_tokens, size);
    ASSERT_EQ(out.scores.size(), static_cast<size_t>(size - 1));
    double sum = 0;
    for (size_t i = 1; i < tokens.size(); ++i) {
      const std::vector<int32_t> before(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(i));
      EXPECT_NEAR(out.scores[i - 1], LogprobOracle(before, tokens[i]), 2e-6);
      sum += out.scores[i - 1];
    }
    EXPECT_DOUBLE_EQ(out.finish->logprob_sum, sum);
  }
}

// A score that wants far masses, beside one that does not.
TEST_F(SequenceTest, FarMassesOfAScore) {
  model_.far_heads = context_.far_heads = {3, 0, 2};
  const auto mass = [](size_t layer, int64_t position, int head) {
    return static_cast<float>(layer) + static_cast<float>(head) / 8 +
           static_cast<float>(position) / 1024;
  };
  model_.on_step = [&](const Batch& batch) {
    float* out = batch.far_mass();
    for (size_t layer = 0; out != nullptr && layer < 3; ++layer) {
      for (const int64_t position : batch.positions()) {
        for (int head = 0; head < model_.far_heads[layer]; ++head)
          *out++ = mass(layer, position, head);
      }
    }
  };
  for (const int size : {1, 2, 34, 200}) {
    Scheduler scheduler(
        &model_, context_,
        {.max_sequences = 2, .slot_memory = 200, .stall_deadline = std::chrono::hours(1)});
    std::vector<std::shared_ptr<EventStream>> streams;
    for (const bool wanted : {false, true, false}) {
      auto feed = std::make_shared<TokenFeed>(300);
      feed->Push(Prompt(size));
      feed->Close();
      streams.push_back(std::make_shared<EventStream>(1000));
      ScoreRequest request{{}, feed};
      request.far_mass = wanted;
      scheduler.Add(std::make_unique<ScoreSequence>(context_, streams.size(), std::move(request),
                                                    streams.back()));
    }
    std::vector<Collected> out(3);
    for (int i = 0; i < 1000; ++i) {
      scheduler.Tick();
      for (size_t j = 0; j < 3; ++j) out[j].Drain(streams[j].get());
    }
    ASSERT_TRUE(out[0].finish && out[1].finish && out[2].finish);
    EXPECT_TRUE(out[0].finish->far_mass.empty() && out[2].finish->far_mass.empty());
    std::vector<FarMass> want;
    for (const int layer : {0, 2}) {
      for (const int64_t first : {0, 64, 128}) {
        const int64_t end = std::min<int64_t>(first == 0 ? 64 : 2 * first, size - 1);
        if (first >= end) continue;
        FarMass range{layer, first, end - first, std::vector<double>(layer == 0 ? 3 : 2)};
        for (size_t head = 0; head < range.shares.size(); ++head) {
          for (int64_t t = first; t < end; ++t)
            range.shares[head] += mass(static_cast<size_t>(layer), t, static_cast<int>(head));
          range.shares[head] /= static_cast<double>(range.queries);
        }
        want.push_back(range);
      }
    }
    const std::vector<FarMass>& got = out[1].finish->far_mass;
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].layer, want[i].layer);
      EXPECT_EQ(got[i].first, want[i].first);
      EXPECT_EQ(got[i].queries, want[i].queries);
      EXPECT_EQ(got[i].shares, want[i].shares) << "multiples of 2^-10: sums are exact";
    }
  }
}

TEST_F(SequenceTest, BadScores) {
  Collected out = Score({});
  EXPECT_EQ(out.finish->reason, FinishReason::kError);
  EXPECT_EQ(out.finish->status.code(), Code::kInvalidArgument);
  std::vector<int32_t> tokens = Prompt(50);
  tokens[40] = kFakeVocab;
  out = Score(tokens);
  EXPECT_EQ(out.finish->status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(out.finish->status.message().starts_with("tokens[40]: expected"))
      << out.finish->status.ToString();
}

}  // namespace
}  // namespace polysketch
