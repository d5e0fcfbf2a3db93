// Sequences that stop and go on: a stopped completion, joined with its continuation, is the one
// that was never stopped; a sequence kept and continued is the one that was given whole; and one
// whose state is dropped again and again returns what it returns in peace.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/prefix_cache/prefix_cache.h"
#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "engine/snapshot/snapshot_file.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/collected.h"
#include "tests/engine/testing/fake_model.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::CollectedChoice;
using testing::kFakeVocab;
using testing::Random;

class MigrationTest : public ::testing::Test {
 protected:
  MigrationTest() {
    context_.tokenizer = &tokenizer_;
    context_.vocab_size = kFakeVocab;
    context_.eos_ids = {testing::kFakeEos};
    context_.max_step_tokens = 8;
    context_.observer = &observer_;
  }

  // Runs a request; after `ticks` steps it is told to migrate. Alone, or with newcomers of another
  // client for which its state is dropped.
  Collected Run(GenerateRequest request, int ticks) {
    int64_t max_tokens = request.params.max_tokens.value_or(100);
    uint64_t seed = request.params.sampling.seed.value_or(5);
    if (request.start != nullptr && request.start->generation) {
      const Generation& generation = *request.start->generation;
      request.params = generation.params;
      max_tokens = generation.max_tokens;
      seed = generation.seed;
    }
    auto stream = std::make_shared<EventStream>(10000);
    Scheduler scheduler(&model_, context_,
                        {.max_sequences = drops_ == nullptr ? 2 : 1,
                         .slot_memory = 300,
                         .stall_deadline = std::chrono::hours(1),
                         .slice = std::chrono::seconds(0)});
    scheduler.Add(std::make_unique<GenerateSequence>(context_, 1, std::move(request), max_tokens,
                                                     seed, stream));
    Collected out;
    for (int i = 0; i < 10000 && !out.finish; ++i) {
      if (i == ticks) scheduler.MigrateAll();
      if (drops_ != nullptr && drops_->Uniform() < 0.2) AddNewcomer(&scheduler, i);
      scheduler.Tick();
      out.Drain(stream.get());
    }
    EXPECT_TRUE(out.finish.has_value());
    scheduler.EndAll(FinishReason::kCancelled, Unavailable("the test is over"));
    EXPECT_EQ(scheduler.states().reserved(), 0u);
    dropped_ += scheduler.stats().dropped_states;
    return out;
  }

  void AddNewcomer(Scheduler* scheduler, int number) {
    GenerateRequest request;
    request.info.principal.name = "newcomer";
    request.migrates = false;
    request.prompt = {3};
    scheduler->Add(std::make_unique<GenerateSequence>(
        context_, static_cast<RequestId>(number) + 100, std::move(request), 1, 1,
        std::make_shared<EventStream>(100)));
  }

  // Through the bytes of a file.
  static std::shared_ptr<const Snapshot> Copy(const Snapshot& snapshot) {
    const SnapshotBinding binding{{}, {}, "fake"};
    const DecodeLimits limits{{kFakeVocab, 1000, true}, 1000};
    auto copy =
        DecodeSnapshot(EncodeSnapshot(snapshot, binding, StateEncoding::kF32Zstd), binding, limits);
    EXPECT_TRUE(copy.ok()) << copy.status().ToString();
    return copy.ok() ? std::make_shared<const Snapshot>(*std::move(copy)) : nullptr;
  }

  // Stops it again and again.
  Collected RunInPieces(const GenerateRequest& request, Random* random, int* pieces) {
    int64_t most = 20;
    Collected all = Run(request, static_cast<int>(random->Int(0, most)));
    while (all.finish && all.finish->reason == FinishReason::kMigrated) {
      ++*pieces;
      GenerateRequest next;
      next.start = Copy(*all.finish->snapshot);
      if (next.start == nullptr) break;
      all.finish.reset();
      // Several choices begin again: they need ever more to get to the end.
      if (request.params.best_of > 1) most += 20;
      Collected more = Run(next, static_cast<int>(random->Int(0, most)));
      const auto append = [](auto* to, const auto& from) {
        to->insert(to->end(), from.begin(), from.end());
      };
      append(&all.tokens, more.tokens);
      append(&all.echoed, more.echoed);
      append(&all.logprobs, more.logprobs);
      append(&all.text, more.text);
      for (auto& [index, choice] : more.choices) {
        CollectedChoice& whole = all.choices[index];
        EXPECT_FALSE(whole.end.has_value()) << "a choice that continues after its end";
        append(&whole.tokens, choice.tokens);
        append(&whole.logprobs, choice.logprobs);
        append(&whole.text, choice.text);
        whole.end = choice.end;
      }
      all.finish = more.finish;
    }
    return all;
  }

  static std::vector<int32_t> Tokens(Random* random, int64_t count) {
    std::vector<int32_t> out(static_cast<size_t>(count));
    for (int32_t& token : out) token = static_cast<int32_t>(random->Int(0, kFakeVocab - 1));
    return out;
  }

  static GenerateRequest RandomRequest(Random* random) {
    GenerateRequest request;
    request.prompt = Tokens(random, random->Int(1, 40));
    GenerateParams& params = request.params;
    params.max_tokens = static_cast<int32_t>(random->Int(0, 60));
    params.sampling.seed = static_cast<uint64_t>(random->Int(0, 1000));
    if (random->Uniform() < 0.3) params.sampling.temperature = 0;
    if (random->Uniform() < 0.3) params.sampling.repetition_penalty = 1.2f;
    if (random->Uniform() < 0.3) params.sampling.frequency_penalty = 0.5f;
    if (random->Uniform() < 0.3) params.sampling.presence_penalty = 0.5f;
    if (random->Uniform() < 0.2) params.sampling.logit_bias = {{60, 3.0f}, {61, 3.0f}};
    if (random->Uniform() < 0.5) params.stop = {"AB", "bcA", "\xEF\xBF\xBD\xEF\xBF\xBD", "QZ "};
    if (random->Uniform() < 0.3) params.draft_tokens = 4;
    if (random->Uniform() < 0.3) params.logprobs = static_cast<int32_t>(random->Int(0, 4));
    params.echo = random->Uniform() < 0.3;
    if (params.echo && params.logprobs) params.logprobs_from = random->Int(0, 40);
    params.ignore_eos = random->Uniform() < 0.7;
    params.include_stop_in_output = random->Uniform() < 0.3;
    if (random->Uniform() < 0.3) params.stop_token_ids = {60};
    if (random->Uniform() < 0.3) params.min_tokens = static_cast<int32_t>(random->Int(0, 60));
    if (random->Uniform() < 0.3) {
      for (int32_t id = 0; id < kFakeVocab; ++id)
        if (id % 4 != 2) params.sampling.allowed_token_ids.push_back(id);
    }
    for (int64_t words = random->Uniform() < 0.4 ? random->Int(1, 20) : 0; words > 0; --words) {
      std::vector<int32_t>& word = params.sampling.bad_words.emplace_back();
      for (int64_t length = random->Int(1, 4); length > 0; --length)
        word.push_back(static_cast<int32_t>(random->Int(56, 63)));
    }
    FitMinimum(&params);
    return request;
  }

  static void FitMinimum(GenerateParams* params) {
    params->min_tokens = std::min(params->min_tokens, *params->max_tokens);
  }

  // What no output of the request may do, whatever its seed.
  static void ExpectRules(const GenerateParams& params, const std::vector<int32_t>& tokens,
                          FinishReason reason) {
    const auto has = [](const std::vector<int32_t>& ids, int32_t id) {
      return std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    for (const std::vector<int32_t>& word : params.sampling.bad_words) {
      EXPECT_EQ(std::search(tokens.begin(), tokens.end(), word.begin(), word.end()), tokens.end());
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool ends =
          has(params.stop_token_ids, tokens[i]) || (!params.ignore_eos && tokens[i] == 1);
      EXPECT_FALSE(ends && static_cast<int32_t>(i) < params.min_tokens);
      EXPECT_TRUE(params.sampling.allowed_token_ids.empty() ||
                  has(params.sampling.allowed_token_ids, tokens[i]));
    }
    EXPECT_TRUE(reason != FinishReason::kStop || std::ssize(tokens) > params.min_tokens);
  }
  static void ExpectRules(const GenerateParams& params, const Collected& got) {
    if (got.choices.size() < 2) return ExpectRules(params, got.tokens, got.finish->reason);
    for (const auto& [index, choice] : got.choices)
      if (choice.end) ExpectRules(params, choice.tokens, choice.end->reason);
  }

  static void ExpectSame(const Collected& got, const Collected& want, int i) {
    // Tokens of several choices come mixed, and differently so.
    if (want.choices.size() < 2) {
      EXPECT_EQ(got.tokens, want.tokens) << i;
      EXPECT_EQ(got.logprobs, want.logprobs) << i;
      EXPECT_EQ(got.text, want.text) << i;
    }
    EXPECT_EQ(got.choices, want.choices) << i;
    EXPECT_EQ(got.echoed, want.echoed) << i;
    EXPECT_EQ(got.finish->reason, want.finish->reason) << i;
    EXPECT_EQ(got.finish->matched_stop, want.finish->matched_stop) << i;
    EXPECT_EQ(got.finish->seed, want.finish->seed) << i;
    EXPECT_EQ(got.finish->usage.prompt_tokens, want.finish->usage.prompt_tokens) << i;
    EXPECT_EQ(got.finish->logprob_sum, want.finish->logprob_sum) << i;
    EXPECT_EQ(got.finish->usage.completion_tokens, want.finish->usage.completion_tokens) << i;
  }

  testing::FakeModel model_;
  Random* drops_ = nullptr;  // null: nothing runs beside a request
  int64_t dropped_ = 0;      // states
  testing::FakeTokenizer tokenizer_;
  EngineObserver observer_;
  SequenceContext context_;
};

TEST_F(MigrationTest, LogitsAfterAClientsStateThatAreNotFiniteAreTheClientsError) {
  GenerateRequest first;
  first.prompt = {5, 6, 7};
  first.params.max_tokens = 0;
  first.keep = true;
  const Collected kept = Run(first, -1);
  ASSERT_NE(kept.finish->snapshot, nullptr);
  for (const int32_t token : {5, 6, 7, 8}) {
    model_.poisoned_hash = testing::FakeModel::Next(model_.poisoned_hash, token);
  }
  for (const bool echo : {false, true}) {
    GenerateRequest request;
    request.prompt = {8, 9};
    request.params.max_tokens = 3;
    if (echo) {
      request.params.echo = true;
      request.params.logprobs = 1;
    } else {
      request.prompt.pop_back();
    }
    request.start = Copy(*kept.finish->snapshot);
    EXPECT_EQ(Run(request, -1).finish->status.code(), Code::kInternal);
    request.client_start = true;
    const Status status = Run(request, -1).finish->status;
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(status.message().starts_with("state: ")) << status.message();
  }
}

// A forged state may spoil a logit after its completion has moved to another replica.
TEST_F(MigrationTest, AClientsStateStaysOneWhenItsCompletionMigrates) {
  GenerateRequest first;
  first.prompt = {5, 6, 7};
  first.params.max_tokens = 0;
  first.keep = true;
  const Collected kept = Run(first, -1);
  ASSERT_NE(kept.finish->snapshot, nullptr);
  GenerateRequest request;
  request.prompt = {8, 9};
  request.params.max_tokens = 20;
  request.params.ignore_eos = true;
  request.start = Copy(*kept.finish->snapshot);
  const Collected whole = Run(request, -1);
  ASSERT_EQ(whole.tokens.size(), 20u);
  uint64_t hash = 0;
  for (const int32_t token : {5, 6, 7, 8, 9}) hash = testing::FakeModel::Next(hash, token);
  for (int i = 0; i < 15; ++i) {
    hash = testing::FakeModel::Next(hash, whole.tokens[static_cast<size_t>(i)]);
  }
  model_.poisoned_hash = hash;
  for (const bool client : {true, false}) {
    request.client_start = client;
    const Collected moved = Run(request, 3);
    ASSERT_EQ(moved.finish->reason, FinishReason::kMigrated) << moved.finish->status.ToString();
    GenerateRequest next;
    next.start = Copy(*moved.finish->snapshot);
    ASSERT_EQ(next.start->generation->client_start, client);
    // It moves twice.
    const Collected again = Run(next, 1);
    ASSERT_EQ(again.finish->reason, FinishReason::kMigrated) << again.finish->status.ToString();
    next.start = Copy(*again.finish->snapshot);
    const Status status = Run(next, -1).finish->status;
    EXPECT_EQ(status.code(), client ? Code::kInvalidArgument : Code::kInternal)
        << status.ToString();
  }
}

TEST_F(MigrationTest, ACompletionThatDoesNotMigrateRunsToItsEnd) {
  Random random(4);
  for (int i = 0; i < 50; ++i) {
    GenerateRequest request = RandomRequest(&random);
    request.params.n = static_cast<int32_t>(random.Int(1, 3));
    request.params.best_of = request.params.n;
    request.migrates = false;
    const Collected got = Run(request, static_cast<int>(random.Int(0, 20)));
    EXPECT_NE(got.finish->reason, FinishReason::kMigrated) << i;
    ExpectSame(got, Run(request, -1), i);
    if (HasFailure()) break;
  }
}

TEST_F(MigrationTest, SeveralChoicesAreNeitherLostNorRepeated) {
  Random random(3);
  int pieces = 0;
  const int count = testing::Count(500, 10000);
  for (int i = 0; i < count; ++i) {
    GenerateRequest request = RandomRequest(&random);
    GenerateParams& params = request.params;
    params.max_tokens = static_cast<int32_t>(random.Int(1, 30));
    FitMinimum(&params);
    params.n = static_cast<int32_t>(random.Int(1, 4));
    params.best_of = std::max<int32_t>(2, params.n + static_cast<int32_t>(random.Int(0, 2)));
    const Collected want = Run(request, -1);
    ExpectRules(params, want);
    ExpectSame(RunInPieces(request, &random, &pieces), want, i);
    if (HasFailure()) break;
  }
  EXPECT_GT(pieces, count / 2) << "too few were stopped for this to mean something";
}

TEST_F(MigrationTest, StoppedAnywhereTheJoinedOutputIsTheUninterruptedOne) {
  Random random(1);
  int pieces = 0;
  const int count = testing::Count(1000, 20000);
  for (int i = 0; i < count; ++i) {
    const GenerateRequest request = RandomRequest(&random);
    const Collected want = Run(request, -1);
    ExpectRules(request.params, want);
    ExpectSame(RunInPieces(request, &random, &pieces), want, i);
    if (HasFailure()) break;
  }
  EXPECT_GT(pieces, count / 2) << "too few were stopped for this to mean something";
}

// Some requests build up a sequence, the last completes: as if all had come at once.
TEST_F(MigrationTest, AKeptSequenceGoesOn) {
  Random random(2);
  for (int i = 0; i < testing::Count(500, 10000); ++i) {
    GenerateRequest last = RandomRequest(&random);
    last.params.echo = false;
    std::vector<int32_t> history;
    std::shared_ptr<const Snapshot> kept;
    for (int64_t parts = random.Int(1, 4); parts > 0; --parts) {
      GenerateRequest part;
      part.keep = true;
      part.start = kept;
      part.prompt = Tokens(&random, random.Int(kept == nullptr ? 1 : 0, 20));
      part.params.max_tokens = static_cast<int32_t>(random.Int(0, 1) * random.Int(1, 10));
      const Collected done = Run(part, -1);
      ASSERT_NE(done.finish->snapshot, nullptr);
      history.insert(history.end(), part.prompt.begin(), part.prompt.end());
      history.insert(history.end(), done.tokens.begin(), done.tokens.end());
      kept = Copy(*done.finish->snapshot);
      ASSERT_NE(kept, nullptr);
      EXPECT_EQ(kept->tokens(), static_cast<int64_t>(history.size()));
    }
    GenerateRequest whole = last;
    whole.prompt.insert(whole.prompt.begin(), history.begin(), history.end());
    last.start = kept;
    const Collected got = Run(last, -1);
    const Collected want = Run(whole, -1);
    ExpectSame(got, want, i);
    EXPECT_EQ(want.finish->usage.cached_tokens, 0);
    EXPECT_EQ(got.finish->usage.cached_tokens, kept->position());
    if (HasFailure()) break;
  }
}

// Prompts, echoes, drafts, several choices, sequences that follow a snapshot or the prefix cache,
// sequences that are kept, and migrations of all of these.
TEST_F(MigrationTest, ADroppedStateIsComputedAgain) {
  Random random(5);
  int pieces = 0, cached = 0;
  const int count = testing::Count(1000, 20000);
  for (int i = 0; i < count; ++i) {
    PrefixCache cache({.memory = 1 << 20, .min_tokens = 4, .every = 8});
    GenerateRequest request = RandomRequest(&random);
    const double kind = random.Uniform();
    if (kind < 0.3) {
      request.params.n = static_cast<int32_t>(random.Int(2, 4));
      request.params.best_of = request.params.n + static_cast<int32_t>(random.Int(0, 1));
      request.params.max_tokens = static_cast<int32_t>(random.Int(1, 30));
      FitMinimum(&request.params);
    } else if (kind < 0.6) {
      GenerateRequest first;
      first.prompt = Tokens(&random, random.Int(1, 20));
      first.params.max_tokens = static_cast<int32_t>(random.Int(0, 5));
      first.keep = true;
      request.start = Run(first, -1).finish->snapshot;
      request.keep = random.Uniform() < 0.5;
    }
    const Collected want = Run(request, -1);
    if (random.Uniform() < 0.3) context_.prefix_cache = &cache;
    drops_ = &random;
    const bool moves = random.Uniform() < 0.3 && !request.keep;
    const Collected got = moves ? RunInPieces(request, &random, &pieces) : Run(request, -1);
    drops_ = nullptr;
    context_.prefix_cache = nullptr;
    cached += cache.stats().hit_tokens > 0;
    ExpectSame(got, want, i);
    if (!moves && want.choices.size() < 2) {
      ASSERT_EQ(got.tops.size(), want.tops.size());
    }
    ASSERT_EQ(got.finish->snapshot != nullptr, request.keep);
    if (request.keep) {
      EXPECT_EQ(got.finish->snapshot->pending, want.finish->snapshot->pending) << i;
      EXPECT_EQ(got.finish->snapshot->history, want.finish->snapshot->history) << i;
      ASSERT_EQ(got.finish->snapshot->position(), want.finish->snapshot->position()) << i;
      GenerateRequest next;
      next.prompt = {4};
      next.params.max_tokens = 5;
      next.start = got.finish->snapshot;
      const Collected after = Run(next, -1);
      next.start = want.finish->snapshot;
      ExpectSame(after, Run(next, -1), i);
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(dropped_, count);
  EXPECT_GT(pieces, count / 10);
  EXPECT_GT(cached, count / 20);
}

// A request that fails, or that did not set `keep`, returns no snapshot.
TEST_F(MigrationTest, SnapshotsOnlyWhereTheyWereWanted) {
  GenerateRequest request;
  request.prompt = {3, 4, 5};
  request.params.max_tokens = 4;
  request.params.ignore_eos = true;
  EXPECT_EQ(Run(request, -1).finish->snapshot, nullptr);
  request.keep = true;
  EXPECT_NE(Run(request, -1).finish->snapshot, nullptr);
  auto broken = std::make_shared<Snapshot>();
  auto state = std::make_shared<SavedState>();
  state->position = 3;
  state->bytes.resize(5);  // not what a state of the model takes
  broken->state = state;
  broken->pending = {1};
  broken->history.seen = TokenSet(kFakeVocab);
  request.start = broken;
  const Collected refused = Run(request, -1);
  EXPECT_EQ(refused.finish->reason, FinishReason::kError);
  EXPECT_EQ(refused.finish->status.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.finish->snapshot, nullptr);
}

}  // namespace
}  // namespace polysketch
