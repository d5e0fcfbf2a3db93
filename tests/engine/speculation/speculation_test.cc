// Drafts save steps and change nothing: drafters alone, and sequences with them and without.
#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "engine/speculation/draft_length.h"
#include "engine/speculation/model_drafter.h"
#include "engine/speculation/ngram_drafter.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/collected.h"
#include "tests/engine/testing/engine_fixture.h"
#include "tests/engine/testing/fake_model.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::FakeModel;
using testing::FakeTokenizer;
using testing::kFakeBlock;
using testing::kFakeEos;
using testing::kFakeVocab;
using testing::Random;
using Tokens = std::vector<int32_t>;

TEST(NgramDrafterTest, ProposesWhatFollowedBefore) {
  NgramDrafter drafter;
  EXPECT_EQ(drafter.Propose(5), Tokens());
  drafter.Append(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4});
  EXPECT_EQ(drafter.Propose(3), (Tokens{5, 6, 7}));
  EXPECT_EQ(drafter.Propose(20).size(), 20u);  // and on with the period
  drafter.Append(Tokens{5, 20});
  EXPECT_EQ(drafter.Propose(3), Tokens());
  drafter.Append(Tokens{2, 3});  // two tokens are enough; the last place counts
  EXPECT_EQ(drafter.Propose(2), (Tokens{4, 5}));
}

TEST(NgramDrafterTest, FourTokensCountMoreThanTwo) {
  NgramDrafter drafter;
  drafter.Append(Tokens{1, 2, 3, 4, 50, 9, 3, 4, 60, 1, 2, 3, 4});
  EXPECT_EQ(drafter.Propose(1), Tokens{50});
}

TEST(NgramDrafterTest, ARunGoesOn) {
  NgramDrafter drafter;
  drafter.Append(Tokens{7, 8, 7, 8, 7, 8});
  EXPECT_EQ(drafter.Propose(5), (Tokens{7, 8, 7, 8, 7}));
}

TEST(NgramDrafterTest, BoundedMemoryOfALongText) {
  NgramDrafter drafter;
  Random random(1);
  Tokens text(static_cast<size_t>(3 * NgramDrafter::kMemory));
  for (int32_t& token : text) token = static_cast<int32_t>(random.Int(0, 30000));
  for (size_t at = 0; at < text.size(); at += 1000) {
    drafter.Append(std::span(text).subspan(at, std::min<size_t>(1000, text.size() - at)));
  }
  // Tokens within the last kMemory tokens are found, much earlier ones are not.
  const auto at = text.size() - NgramDrafter::kMemory + 100;
  drafter.Append(std::span(text).subspan(at, 4));
  EXPECT_EQ(drafter.Propose(2), (Tokens{text[at + 4], text[at + 5]}));
  drafter.Append(std::span(text).subspan(50, 4));
  EXPECT_EQ(drafter.Propose(2), Tokens());
}

TEST(DraftLengthTest, GrowsShrinksAndPauses) {
  DraftLength length(16);
  EXPECT_EQ(length.Next(), 4);
  length.OnStep(4, 4);
  EXPECT_EQ(length.Next(), 8);
  length.OnStep(8, 8);
  length.OnStep(16, 16);
  EXPECT_EQ(length.Next(), 16);
  length.OnStep(16, 2);
  EXPECT_EQ(length.Next(), 3);
  int64_t proposed = 0;
  for (int step = 0; step < 10000; ++step) {  // nothing holds any more
    proposed += length.Next();
    length.OnStep(length.Next(), 0);
  }
  EXPECT_LT(proposed, 200);
  EXPECT_EQ(DraftLength(0).Next(), 0);
}

class DraftObserver : public EngineObserver {
 public:
  void OnDraft(int64_t of, int64_t held) override {
    proposed += of;
    accepted += held;
  }
  int64_t proposed = 0, accepted = 0;
};

class SpeculationTest : public ::testing::Test {
 protected:
  Collected Run(const Tokens& prompt, GenerateParams params, int drafts) {
    context_.draft_tokens = drafts;
    Scheduler scheduler(&model_, context_, {.max_sequences = 8, .slot_memory = 1000});
    const auto stream = std::make_shared<EventStream>(100000);
    scheduler.Add(std::make_unique<GenerateSequence>(
        context_, 1, GenerateRequest{{}, prompt, params}, *params.max_tokens,
        params.sampling.seed.value_or(1), stream));
    steps_ = 0;
    while (scheduler.Tick()) ++steps_;
    Collected got;
    got.Drain(stream.get());
    EXPECT_EQ(scheduler.states().reserved(), 0u);
    return got;
  }
  static void ExpectSame(const Collected& a, const Collected& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.echoed, b.echoed);
    EXPECT_EQ(a.text, b.text);
    EXPECT_EQ(a.logprobs, b.logprobs);
    ASSERT_EQ(a.tops.size(), b.tops.size());
    for (size_t i = 0; i < a.tops.size(); ++i) {
      ASSERT_EQ(a.tops[i].size(), b.tops[i].size());
      for (size_t j = 0; j < a.tops[i].size(); ++j) {
        EXPECT_EQ(a.tops[i][j].token, b.tops[i][j].token);
        EXPECT_EQ(a.tops[i][j].logprob, b.tops[i][j].logprob);
      }
    }
    EXPECT_EQ(a.choices, b.choices);
    ASSERT_TRUE(a.finish && b.finish);
    EXPECT_EQ(a.finish->reason, b.finish->reason);
    EXPECT_EQ(a.finish->matched_stop, b.finish->matched_stop);
    EXPECT_EQ(a.finish->usage.completion_tokens, b.finish->usage.completion_tokens);
    EXPECT_EQ(a.finish->logprob_sum, b.finish->logprob_sum);
  }
  static GenerateParams Repeating(int tokens) {
    GenerateParams params;
    params.sampling.temperature = 0;
    params.sampling.logit_bias = {{7, 100.0f}};
    params.max_tokens = tokens;
    params.ignore_eos = true;
    return params;
  }

  FakeModel model_;
  FakeTokenizer tokenizer_;
  DraftObserver observer_;
  SequenceContext context_{.tokenizer = &tokenizer_,
                           .vocab_size = kFakeVocab,
                           .eos_ids = {kFakeEos},
                           .max_step_tokens = 32,
                           .observer = &observer_};
  int steps_ = 0;
};

TEST_F(SpeculationTest, ARepeatingTextTakesFewSteps) {
  const Collected plain = Run({5, 6}, Repeating(200), 0);
  EXPECT_EQ(steps_, 200);
  const Collected drafted = Run({5, 6}, Repeating(200), 16);
  ExpectSame(drafted, plain);
  // A draft ends with its block, of which there are 25; some steps go by before there is a pattern.
  EXPECT_LE(steps_, 200 / kFakeBlock + 8);
  EXPECT_GT(observer_.accepted, 150);
  EXPECT_EQ(observer_.accepted, observer_.proposed);
}

TEST_F(SpeculationTest, TheRequestSays) {
  GenerateParams params = Repeating(50);
  params.draft_tokens = 0;
  Run({5, 6}, params, 16);
  EXPECT_EQ(observer_.proposed, 0);
  params.draft_tokens = 4;
  Run({5, 6}, params, 0);
  EXPECT_GT(observer_.proposed, 0);
}

// With seeds, penalties, stop strings, log-probabilities, several choices.
TEST_F(SpeculationTest, NothingChanges) {
  Random random(5);
  for (int trial = 0; trial < testing::Count(400, 20000); ++trial) {
    GenerateParams params;
    params.max_tokens = static_cast<int32_t>(random.Int(1, 120));
    params.sampling.seed = static_cast<uint64_t>(trial);
    params.sampling.temperature = random.Uniform() < 0.4 ? 0 : 1;
    params.sampling.logit_bias = {{7, 5.0f}, {9, 5.0f}, {61, 4.0f}, {62, 4.0f}};
    if (random.Uniform() < 0.3) params.sampling.top_k = 3;
    if (random.Uniform() < 0.3) params.sampling.top_p = 0.8f;
    if (random.Uniform() < 0.3) params.sampling.repetition_penalty = 1.1f;
    if (random.Uniform() < 0.3) params.sampling.frequency_penalty = 0.1f;
    if (random.Uniform() < 0.4) params.stop = {"EGE", "GGGG", "EEE"};
    if (random.Uniform() < 0.2) params.stop_token_ids = {11};
    if (random.Uniform() < 0.4) params.logprobs = static_cast<int32_t>(random.Int(0, 3));
    params.echo = random.Uniform() < 0.3;
    params.ignore_eos = random.Uniform() < 0.5;
    params.include_stop_in_output = random.Uniform() < 0.5;
    if (random.Uniform() < 0.2) params.n = params.best_of = 3;
    if (random.Uniform() < 0.2) params.best_of = params.n + 2;
    Tokens prompt(static_cast<size_t>(random.Int(1, 60)));
    for (int32_t& token : prompt) token = random.Uniform() < 0.5 ? 7 : 9;
    const Collected plain = Run(prompt, params, 0);
    const Collected drafted = Run(prompt, params, static_cast<int>(random.Int(1, 30)));
    if (params.best_of == 1) {
      ExpectSame(drafted, plain);
    } else {
      EXPECT_EQ(drafted.choices, plain.choices);
    }
    ASSERT_FALSE(HasFailure()) << "trial " << trial;
  }
  EXPECT_GT(observer_.accepted, testing::Count(400, 20000));
  EXPECT_LT(observer_.accepted, observer_.proposed);
}

// A draft model that is the model itself is always right under greedy sampling.
TEST_F(SpeculationTest, DraftModel) {
  FakeModel draft_model;
  StatePool states(&draft_model, 100, 0);
  context_.new_drafter = [&] { return std::make_unique<ModelDrafter>(&draft_model, &states); };
  GenerateParams params;
  params.sampling.temperature = 0;
  params.max_tokens = 100;
  params.ignore_eos = true;
  const Tokens prompt(100, 5);  // several steps of the draft model
  const Collected plain = Run(prompt, params, 0);
  const Collected drafted = Run(prompt, params, 8);
  ExpectSame(drafted, plain);
  EXPECT_GT(observer_.accepted, 60);
  EXPECT_EQ(observer_.accepted, observer_.proposed);
  EXPECT_LT(steps_, 60);
  // Otherwise it is right now and then.
  params.sampling.temperature = 1;
  params.sampling.top_k = 2;
  ExpectSame(Run(prompt, params, 8), Run(prompt, params, 0));
  EXPECT_LT(observer_.accepted, observer_.proposed);
}

// Its positions end before those of the model: the rest goes on without drafts.
TEST_F(SpeculationTest, DraftModelWithAContextLimit) {
  FakeModel draft_model;
  draft_model.max_positions = 150;
  StatePool states(&draft_model, 100, 0);
  context_.new_drafter = [&] { return std::make_unique<ModelDrafter>(&draft_model, &states, 150); };
  GenerateParams params;
  params.sampling.temperature = 0;
  params.max_tokens = 100;
  params.ignore_eos = true;
  for (const size_t size : {100, 200}) {
    observer_ = {};
    const Tokens prompt(size, 5);
    ExpectSame(Run(prompt, params, 8), Run(prompt, params, 0));
    EXPECT_EQ(observer_.accepted > 20, size == 100);
    EXPECT_EQ(states.reserved(), 0u);
  }
}

// Drafts take no more memory than they may: who gets none, or outgrows it, goes on without.
TEST_F(SpeculationTest, DraftModelsStatesHaveABudget) {
  for (const bool growing : {false, true}) {
    FakeModel draft_model(32, growing);
    const size_t limit = growing ? 600 : 100;  // 60 tokens, or one state
    StatePool states(&draft_model, limit, 0);
    context_.new_drafter = [&] { return std::make_unique<ModelDrafter>(&draft_model, &states); };
    context_.draft_tokens = 4;
    observer_ = {};
    Scheduler scheduler(&model_, context_, {.max_sequences = 3, .slot_memory = 1000});
    std::vector<std::shared_ptr<EventStream>> streams;
    for (RequestId id = 1; id <= 3; ++id) {
      streams.push_back(std::make_shared<EventStream>(10000));
      GenerateParams params;
      params.sampling.temperature = 0;
      params.ignore_eos = true;
      scheduler.Add(std::make_unique<GenerateSequence>(
          context_, id, GenerateRequest{{}, Tokens(10, 5), params}, 100, 3, streams.back()));
    }
    size_t most = 0;
    while (scheduler.Tick()) {
      most = std::max(most, states.reserved());
      EXPECT_LE(states.reserved(), limit);
    }
    EXPECT_GT(most, limit / 2);
    EXPECT_EQ(states.reserved(), 0u);
    EXPECT_GT(observer_.accepted, 0);
    for (const auto& stream : streams) {
      Collected got;
      got.Drain(stream.get());
      EXPECT_EQ(got.tokens.size(), 100u);
    }
  }
}

class ChoicesTest : public SpeculationTest {};

TEST_F(ChoicesTest, EachIsWhatItsSeedGivesAlone) {
  GenerateParams params;
  params.max_tokens = 30;
  params.sampling.seed = 99;
  params.logprobs = 1;
  params.stop = {"AB", "Q"};
  params.n = params.best_of = 4;
  for (const size_t size : {size_t{1}, size_t{2}, size_t{8}, size_t{9}, size_t{100}}) {
    const Tokens prompt(size, 5);
    const Collected all = Run(prompt, params, 0);
    ASSERT_EQ(all.choices.size(), 4u);
    int64_t tokens = 0;
    for (const auto& [index, choice] : all.choices) {
      ASSERT_TRUE(choice.end.has_value());
      GenerateParams one = params;
      one.n = one.best_of = 1;
      one.sampling.seed = choice.end->seed;
      const Collected alone = Run(prompt, one, 0);
      EXPECT_EQ(choice.tokens, alone.tokens) << index;
      EXPECT_EQ(choice.text, alone.text);
      EXPECT_EQ(choice.logprobs, alone.logprobs);
      EXPECT_EQ(choice.end->reason, alone.finish->reason);
      EXPECT_EQ(choice.end->logprob_sum, alone.finish->logprob_sum);
      tokens += std::ssize(choice.tokens);
    }
    EXPECT_EQ(all.choices.at(0).end->seed, 99u);
    EXPECT_EQ(all.finish->usage.completion_tokens, tokens);
    EXPECT_EQ(all.finish->usage.prompt_tokens, static_cast<int64_t>(size));
    EXPECT_EQ(all.finish->text, "");
  }
}

TEST_F(ChoicesTest, EachHasASeedOfItsOwn) {
  GenerateParams params;
  params.max_tokens = 30;
  params.sampling.seed = 99;
  params.ignore_eos = true;
  params.n = params.best_of = 8;
  const Collected all = Run(Tokens(20, 5), params, 0);
  std::set<uint64_t> seeds;
  std::set<Tokens> outputs;
  for (const auto& [index, choice] : all.choices) {
    seeds.insert(choice.end->seed);
    outputs.insert(choice.tokens);
  }
  EXPECT_EQ(seeds.size(), 8u);
  EXPECT_EQ(outputs.size(), 8u);
}

TEST_F(ChoicesTest, TheyCountAsOneRequest) {
  testing::CountingObserver observer;
  context_.observer = &observer;
  GenerateParams params;
  params.max_tokens = 30;
  params.ignore_eos = true;
  params.n = params.best_of = 3;
  Run(Tokens(20, 5), params, 0);
  EXPECT_EQ(observer.admitted, 1);
  EXPECT_EQ(observer.finished, 1);
  EXPECT_EQ(observer.completion_tokens, 3 * 30);
}

TEST_F(ChoicesTest, BestOfGivesTheMostLikely) {
  GenerateParams params;
  params.max_tokens = 12;
  params.sampling.seed = 4;
  params.ignore_eos = true;
  params.logprobs = 0;
  params.n = params.best_of = 8;
  const Tokens prompt(20, 5);
  const Collected all = Run(prompt, params, 0);
  std::vector<std::pair<double, Tokens>> ranked;
  for (const auto& [index, choice] : all.choices) {
    ranked.emplace_back(choice.end->logprob_sum, choice.tokens);
  }
  std::sort(ranked.rbegin(), ranked.rend());
  params.n = 3;
  params.logprobs.reset();
  const Collected best = Run(prompt, params, 0);
  ASSERT_EQ(best.choices.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(best.choices.at(i).tokens, ranked[static_cast<size_t>(i)].second);
    EXPECT_EQ(best.choices.at(i).end->logprob_sum, ranked[static_cast<size_t>(i)].first);
  }
  EXPECT_EQ(best.finish->usage.completion_tokens, 8 * 12);
}

TEST_F(ChoicesTest, ThePromptIsReadOnce) {
  GenerateParams params;
  params.max_tokens = 1;
  params.ignore_eos = true;
  params.n = params.best_of = 8;
  Run(Tokens(32 * 20 + 1, 5), params, 0);
  // 20 steps of the prompt, then its last token and the first of each choice, eight at once.
  EXPECT_LE(steps_, 22);
}

TEST_F(ChoicesTest, EchoComesOnceAndFirst) {
  GenerateParams params;
  params.max_tokens = 5;
  params.echo = true;
  params.n = params.best_of = 3;
  for (const bool logprobs : {false, true}) {
    if (logprobs) params.logprobs = 0;
    const Collected all = Run(Tokens(40, 5), params, 0);
    EXPECT_EQ(all.echoed, Tokens(40, 5));
    EXPECT_EQ(all.choices.size(), 3u);
  }
}

TEST_F(ChoicesTest, OneSlotIsEnoughForMany) {
  context_.draft_tokens = 0;
  Scheduler scheduler(&model_, context_, {.max_sequences = 1, .slot_memory = 200});
  const auto stream = std::make_shared<EventStream>(100000);
  GenerateParams params;
  params.n = params.best_of = 5;
  scheduler.Add(std::make_unique<GenerateSequence>(
      context_, 1, GenerateRequest{{}, Tokens(20, 5), params}, 6, 3, stream));
  while (scheduler.Tick()) EXPECT_LE(scheduler.states().reserved(), 200u);
  Collected got;
  got.Drain(stream.get());
  EXPECT_EQ(got.choices.size(), 5u);
  EXPECT_TRUE(got.finish && got.finish->status.ok());
  EXPECT_EQ(scheduler.states().reserved(), 0u);
}

TEST_F(ChoicesTest, AllEndTogetherWhenOneFailsOrIsCancelled) {
  for (const int ticks : {1, 3, 6, 12}) {
    int endings = 0;
    SchedulerOptions options{.max_sequences = 2, .slot_memory = 300};
    options.on_ending = [&endings](const Sequence&) { ++endings; };
    Scheduler scheduler(&model_, context_, options);
    const auto stream = std::make_shared<EventStream>(100000);
    GenerateParams params;
    params.n = params.best_of = 5;
    params.ignore_eos = true;
    scheduler.Add(std::make_unique<GenerateSequence>(
        context_, 1, GenerateRequest{{}, Tokens(100, 5), params}, 8, 3, stream));
    for (int i = 0; i < ticks; ++i) scheduler.Tick();
    scheduler.End(1, FinishReason::kCancelled, Status(Code::kCancelled, "cancelled"));
    EXPECT_FALSE(scheduler.Tick());
    Collected got;
    got.Drain(stream.get());
    ASSERT_TRUE(got.finish.has_value());
    EXPECT_EQ(got.finish->reason, FinishReason::kCancelled);
    EXPECT_EQ(endings, 1);
    EXPECT_EQ(scheduler.size(), 0);
    EXPECT_EQ(scheduler.states().reserved(), 0u);
  }
}

}  // namespace
}  // namespace polysketch
