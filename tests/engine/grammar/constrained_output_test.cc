// Completions with a grammar: the output depends on the request alone, not on drafts, chunks of the
// prompt, masks that are late, or migrations.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "engine/snapshot/snapshot_file.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/collected.h"
#include "tests/engine/testing/fake_grammar.h"
#include "tests/engine/testing/fake_model.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::FakeGrammar;
using testing::kFakeEos;
using testing::kFakeVocab;

// Tokens rise by at most 9, modulo the vocabulary, and EOS is allowed after 20 tokens.
bool Rises(const std::vector<int32_t>& output, int32_t token) {
  if (token == kFakeEos) return output.size() >= 20;
  const int32_t last = output.empty() ? 7 : output.back();
  const int32_t step = (token - last + kFakeVocab) % kFakeVocab;
  return step >= 1 && step <= 9 && token > kFakeEos;
}

class ConstrainedOutputTest : public ::testing::Test {
 protected:
  ConstrainedOutputTest() {
    context_.tokenizer = &tokenizer_;
    context_.vocab_size = kFakeVocab;
    context_.eos_ids = {kFakeEos};
    context_.max_step_tokens = 8;
    context_.observer = &observer_;
    grammar_ = std::make_shared<FakeGrammar>(kFakeVocab, kFakeEos, Rises);
  }

  GenerateRequest Request(float temperature = 0.8f) const {
    GenerateRequest request;
    request.prompt = {5, 9, 13, 5, 9, 13, 5, 9, 13, 5, 9};
    request.params.sampling.temperature = temperature;
    request.params.sampling.seed = 11;
    request.params.max_tokens = 60;
    request.params.grammar = GrammarSource{GrammarSource::Kind::kRegex, "rises"};
    request.grammar = grammar_;
    return request;
  }
  // Runs requests together until all have ended; at tick `migrate` they are told to migrate.
  std::vector<Collected> Run(std::vector<GenerateRequest> requests, int migrate = -1) {
    Scheduler scheduler(
        &model_, context_,
        {.max_sequences = 8, .slot_memory = 1000, .stall_deadline = std::chrono::hours(1)});
    std::vector<std::shared_ptr<EventStream>> streams;
    for (GenerateRequest& request : requests) {
      int64_t max_tokens = *request.params.max_tokens;
      uint64_t seed = *request.params.sampling.seed;
      if (request.start != nullptr && request.start->generation)
        seed = request.start->generation->seed;
      streams.push_back(std::make_shared<EventStream>(10000));
      scheduler.Add(std::make_unique<GenerateSequence>(context_, streams.size(), std::move(request),
                                                       max_tokens, seed, streams.back()));
    }
    std::vector<Collected> out(streams.size());
    bool ended = false;
    for (int tick = 0; !ended && tick < 100000; ++tick) {
      if (tick == migrate) scheduler.MigrateAll();
      if (!scheduler.Tick()) std::this_thread::sleep_for(std::chrono::microseconds(200));
      ended = true;
      for (size_t i = 0; i < out.size(); ++i) {
        out[i].Drain(streams[i].get());
        ended = ended && out[i].finish.has_value();
      }
      ++ticks_;
    }
    EXPECT_TRUE(ended);
    return out;
  }
  Collected Run(GenerateRequest request, int migrate = -1) {
    std::vector<GenerateRequest> requests;
    requests.push_back(std::move(request));
    return std::move(Run(std::move(requests), migrate).front());
  }

  EngineObserver observer_;
  testing::FakeTokenizer tokenizer_;
  testing::FakeModel model_;
  SequenceContext context_;
  std::shared_ptr<FakeGrammar> grammar_;
  int ticks_ = 0;
};

TEST_F(ConstrainedOutputTest, EveryTokenIsAllowed) {
  for (const float temperature : {0.0f, 0.7f, 5.0f}) {
    const Collected got = Run(Request(temperature));
    ASSERT_TRUE(got.finish && got.finish->status.ok());
    EXPECT_EQ(got.finish->reason, FinishReason::kStop);
    std::vector<int32_t> output;
    for (const int32_t token : got.tokens) {
      EXPECT_TRUE(Rises(output, token)) << output.size();
      output.push_back(token);
    }
    EXPECT_EQ(output.back(), kFakeEos);
    // The model alone does not do that.
    GenerateRequest free = Request(temperature);
    free.params.grammar.reset();
    free.grammar = nullptr;
    EXPECT_NE(Run(std::move(free)).tokens, got.tokens);
  }
}

TEST_F(ConstrainedOutputTest, OptionsDoNotChangeTheOutput) {
  GenerateRequest plain = Request();
  plain.params.sampling.top_k = 5;
  plain.params.sampling.top_p = 0.9f;
  plain.params.sampling.repetition_penalty = 1.3f;
  plain.params.logprobs = 2;
  const Collected want = Run(plain);
  for (const int drafts : {1, 4, 7}) {
    GenerateRequest request = plain;
    request.params.draft_tokens = drafts;
    EXPECT_EQ(Run(request).tokens, want.tokens) << drafts;
    EXPECT_EQ(Run(request).logprobs, want.logprobs) << drafts;
  }
  context_.max_step_tokens = 3;
  EXPECT_EQ(Run(plain).tokens, want.tokens);
}

// The rules of a request hold within what the grammar allows, and never against it.
TEST_F(ConstrainedOutputTest, RulesYieldToTheGrammar) {
  int moved = 0;
  for (const int drafts : {0, 4}) {
    for (int seed = 0; seed < 20; ++seed) {
      GenerateRequest request = Request();
      request.params.draft_tokens = drafts;
      request.params.sampling.seed = seed;
      request.params.min_tokens = 30;
      request.params.sampling.bad_words = {{20}, {21, 23}, {21, 24, 26}};
      const Collected got = Run(request);
      ASSERT_EQ(got.finish->reason, FinishReason::kStop);
      EXPECT_GT(got.tokens.size(), 30u);
      std::vector<int32_t> output;
      for (const int32_t token : got.tokens) {
        EXPECT_TRUE(Rises(output, token)) << output.size();
        output.push_back(token);
      }
      for (const std::vector<int32_t>& word : request.params.sampling.bad_words)
        EXPECT_EQ(std::search(output.begin(), output.end(), word.begin(), word.end()),
                  output.end());
      // Between any two tokens, as if nothing had happened.
      Collected first = Run(request, 10 + seed);
      if (first.finish->reason != FinishReason::kMigrated) continue;
      ++moved;
      GenerateRequest rest = request;
      rest.start = first.finish->snapshot;
      rest.prompt.clear();
      const Collected last = Run(rest);
      first.tokens.insert(first.tokens.end(), last.tokens.begin(), last.tokens.end());
      EXPECT_EQ(first.tokens, got.tokens) << seed;
    }
  }
  EXPECT_GT(moved, 10);
  // After twenty tokens EOS alone is allowed, and before one token alone, a bad word.
  grammar_ = std::make_shared<FakeGrammar>(kFakeVocab, kFakeEos,
                                           [](const std::vector<int32_t>& output, int32_t token) {
                                             return token == (output.size() < 20 ? 40 : kFakeEos);
                                           });
  GenerateRequest forced = Request();
  forced.params.min_tokens = 30;
  forced.params.sampling.bad_words = {{40}};
  forced.params.sampling.allowed_token_ids = {2, 3};
  const Collected got = Run(forced);
  EXPECT_EQ(got.finish->reason, FinishReason::kStop);
  EXPECT_EQ(got.tokens.size(), 21u);
}

TEST_F(ConstrainedOutputTest, LateMasksHoldNobodyUp) {
  GenerateRequest free = Request();
  free.params.grammar.reset();
  free.grammar = nullptr;
  free.params.ignore_eos = true;
  const Collected want_free = Run(free);
  for (const int drafts : {0, 4}) {
    GenerateRequest constrained = Request();
    constrained.params.draft_tokens = drafts;
    grammar_->before_answer = [] {};
    const Collected want = Run(constrained);
    grammar_->before_answer = [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
    const auto start = std::chrono::steady_clock::now();
    std::vector<GenerateRequest> both;
    both.push_back(constrained);
    both.push_back(free);
    const std::vector<Collected> got = Run(std::move(both));
    // Its masks alone take that long, so they were late.
    EXPECT_GE(std::chrono::steady_clock::now() - start,
              std::chrono::milliseconds(30) * std::ssize(want.tokens) / (drafts + 1));
    EXPECT_EQ(got[0].tokens, want.tokens) << drafts;
    EXPECT_EQ(got[0].text, want.text);
    EXPECT_EQ(got[1].tokens, want_free.tokens);
  }
}

TEST_F(ConstrainedOutputTest, ChoicesHaveTheirOwnWays) {
  GenerateRequest request = Request();
  request.params.n = request.params.best_of = 3;
  const Collected got = Run(request);
  ASSERT_EQ(got.choices.size(), 3u);
  EXPECT_EQ(got.choices.at(0).tokens, Run(Request()).tokens);
  for (const auto& [index, choice] : got.choices) {
    std::vector<int32_t> output;
    for (const int32_t token : choice.tokens) {
      EXPECT_TRUE(Rises(output, token)) << index;
      output.push_back(token);
    }
  }
  EXPECT_NE(got.choices.at(1).tokens, got.choices.at(0).tokens);
}

TEST_F(ConstrainedOutputTest, MigratesBetweenAnyTwoTokens) {
  const Collected want = Run(Request());
  const SnapshotBinding binding{{}, {}, "fake"};
  const DecodeLimits limits{{kFakeVocab, 1000, true}, 1000};
  for (const bool late : {false, true}) {
    grammar_->before_answer = [late] {
      if (late) std::this_thread::sleep_for(std::chrono::milliseconds(8));
    };
    for (int tick = 0; tick < 24; tick += late ? 5 : 1) {
      Collected first = Run(Request(), tick);
      if (first.finish->reason != FinishReason::kMigrated) continue;
      auto copy =
          DecodeSnapshot(EncodeSnapshot(*first.finish->snapshot, binding, StateEncoding::kF32Zstd),
                         binding, limits);
      ASSERT_TRUE(copy.ok()) << copy.status().ToString();
      EXPECT_EQ(copy->generation, first.finish->snapshot->generation);
      GenerateRequest rest = Request();
      rest.prompt.clear();
      rest.start = std::make_shared<const Snapshot>(*std::move(copy));
      const Collected second = Run(std::move(rest));
      std::vector<int32_t> joined = first.tokens;
      joined.insert(joined.end(), second.tokens.begin(), second.tokens.end());
      EXPECT_EQ(joined, want.tokens) << tick;
    }
  }
}

TEST_F(ConstrainedOutputTest, ProcessThatHasEndedEndsItsRequestsAlone) {
  // The socket closes at once, as that of a process that was ended.
  class Closed : public FakeGrammar {
   public:
    using FakeGrammar::FakeGrammar;
    Result<int> OpenWalk() const override {
      int ends[2];
      PS_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
      close(ends[1]);
      return ends[0];
    }
  };
  GenerateRequest broken = Request();
  broken.grammar = std::make_shared<Closed>(kFakeVocab, kFakeEos, Rises);
  std::vector<GenerateRequest> both;
  both.push_back(std::move(broken));
  both.push_back(Request());
  const std::vector<Collected> got = Run(std::move(both));
  EXPECT_EQ(got[0].finish->status.code(), Code::kUnavailable);
  EXPECT_EQ(got[1].tokens, Run(Request()).tokens);
}

}  // namespace
}  // namespace polysketch
