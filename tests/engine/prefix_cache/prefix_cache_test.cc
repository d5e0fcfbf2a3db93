// Stored prompts: which are found, which are not, and that the output is the same either way.
#include "engine/prefix_cache/prefix_cache.h"

#include <map>
#include <memory>

#include "engine/scheduler/generate_sequence.h"
#include "engine/scheduler/scheduler.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/collected.h"
#include "tests/engine/testing/fake_model.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Collected;
using testing::kFakeBlock;
using testing::kFakeVocab;
using testing::Random;

std::shared_ptr<const SavedState> StateOf(int64_t tokens, size_t bytes = 1000) {
  auto state = std::make_shared<SavedState>();
  state->position = tokens;
  state->bytes.resize(bytes);
  return state;
}

std::vector<int32_t> Count(int n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) tokens[static_cast<size_t>(i)] = i % 50;
  return tokens;
}

TEST(PrefixCacheTest, LongestExactPrefixOfTheTenant) {
  PrefixCache cache({.memory = 1 << 20});
  for (const int length : {4, 10, 20})
    cache.Insert("t", {"t"}, Count(length), StateOf(length), length);
  cache.Insert("u", {"u"}, Count(30), StateOf(30), 30);
  const auto found = [&](const std::string& salt, const std::vector<int32_t>& prompt) {
    const auto hit = cache.Find(salt, prompt);
    return hit ? hit->tokens : 0;
  };
  EXPECT_EQ(found("t", Count(40)), 20);
  EXPECT_EQ(found("t", Count(21)), 20);
  EXPECT_EQ(found("t", Count(15)), 10);
  EXPECT_EQ(found("t", Count(3)), 0);
  EXPECT_EQ(found("u", Count(40)), 30);
  EXPECT_EQ(found("", Count(40)), 0);
  EXPECT_EQ(found("tu", Count(40)), 0);
  std::vector<int32_t> other = Count(40);
  other[12] = 49;
  EXPECT_EQ(found("t", other), 10);
  other[3] = 49;
  EXPECT_EQ(found("t", other), 0);
}

TEST(PrefixCacheTest, ATenantThatStoresMuchEvictsItsOwn) {
  PrefixCache cache({.memory = 20 * 1200});
  const auto found = [&](const std::string& salt, int length) {
    const auto hit = cache.Find(salt, Count(length + 1));
    return hit && hit->tokens == length;
  };
  for (const int length : {10, 11})
    cache.Insert("u", {"u"}, Count(length), StateOf(length), length);
  for (int length = 20; length < 60; ++length)
    cache.Insert("t", {"t"}, Count(length), StateOf(length), length);
  EXPECT_TRUE(found("u", 10) && found("u", 11)) << "older than all, and within the share";
  EXPECT_TRUE(found("t", 59));
  EXPECT_FALSE(found("t", 20));
  EXPECT_GT(cache.stats().entries, 12) << "what a tenant leaves, others use";
  for (int length = 20; length < 60; ++length)
    cache.Insert("u", {"u"}, Count(length), StateOf(length), length);
  EXPECT_TRUE(found("t", 59)) << "a tenant at its share keeps its newest";
  EXPECT_GT(cache.stats().bytes, size_t{15 * 1200});
  EXPECT_LE(cache.stats().bytes, cache.memory());
  cache.SetMemory(0);
  EXPECT_EQ(cache.stats().entries, 0);
  EXPECT_EQ(cache.stats().bytes, 0u);
}

// Clients without a tenant have one salt: each finds what any of them stores, and holds its own.
TEST(PrefixCacheTest, AClientThatStoresMuchEvictsItsOwn) {
  PrefixCache cache({.memory = 20 * 1200});
  const auto found = [&](int length) {
    const auto hit = cache.Find("", Count(length + 1));
    return hit && hit->tokens == length;
  };
  for (const int length : {10, 11})
    cache.Insert("", {"few"}, Count(length), StateOf(length), length);
  for (int length = 20; length < 60; ++length)
    cache.Insert("", {"many"}, Count(length), StateOf(length), length);
  EXPECT_TRUE(found(10) && found(11)) << "older than all, and within the share";
  EXPECT_FALSE(found(20));
  EXPECT_TRUE(found(59));
  // An entry stays that of the client that stored it.
  cache.Insert("", {"few"}, Count(59), StateOf(59), 59);
  for (int length = 60; length < 100; ++length)
    cache.Insert("", {"many"}, Count(length), StateOf(length), length);
  EXPECT_FALSE(found(59));
  EXPECT_TRUE(found(10) && found(11));
}

// The whole prompt is stored, and a token of it must run: only if the last one can be cut off.
TEST(PrefixCacheTest, TheSamePromptAgain) {
  PrefixCache cache({.memory = 1 << 20});
  cache.Insert("t", {"t"}, Count(8), StateOf(8), 0);
  cache.Insert("t", {"t"}, Count(12), StateOf(12), 9);
  cache.Insert("t", {"t"}, Count(17), StateOf(17), 17);
  EXPECT_EQ(cache.Find("t", Count(12))->tokens, 11);
  EXPECT_EQ(cache.Find("t", Count(17))->tokens, 12) << "token 16 began a block";
  EXPECT_EQ(cache.Find("t", Count(18))->tokens, 17);
  EXPECT_FALSE(cache.Find("t", std::vector<int32_t>{0}).has_value());
}

// A prompt that goes along with a state up to a token of its last block.
TEST(PrefixCacheTest, PartsOfAState) {
  PrefixCache cache({.memory = 1 << 20, .min_tokens = 10});
  cache.Insert("t", {"t"}, Count(20), StateOf(20), 17);
  cache.Insert("t", {"t"}, Count(12), StateOf(12), 5);
  const auto found = [&](size_t common) {
    std::vector<int32_t> prompt = Count(40);
    prompt[common] = 51;
    const auto hit = cache.Find("t", prompt);
    return hit ? hit->tokens : 0;
  };
  EXPECT_EQ(found(30), 20);
  EXPECT_EQ(found(19), 19);
  EXPECT_EQ(found(17), 17);
  EXPECT_EQ(found(16), 12) << "before the longer one's last block";
  EXPECT_EQ(found(11), 11);
  EXPECT_EQ(found(9), 0) << "too few to be worth a copy";
  EXPECT_EQ(cache.Find("t", Count(18))->tokens, 17);
  EXPECT_EQ(cache.Find("t", Count(17))->tokens, 12);
}

TEST(PrefixCacheTest, LeastRecentlyUsedByBytes) {
  PrefixCache cache({.memory = 5000});
  for (int i = 0; i < 4; ++i) {
    cache.Insert("t", {"t"}, std::vector<int32_t>{i, 1, 2}, StateOf(3), 3);
  }
  EXPECT_EQ(cache.stats().entries, 4);
  EXPECT_TRUE(cache.Touch("t", std::vector<int32_t>{0, 1, 2}));
  cache.Insert("t", {"t"}, std::vector<int32_t>{9, 1, 2}, StateOf(3), 3);
  EXPECT_LE(cache.stats().bytes, 5000u);
  EXPECT_TRUE(cache.Touch("t", std::vector<int32_t>{0, 1, 2}));
  EXPECT_FALSE(cache.Touch("t", std::vector<int32_t>{1, 1, 2}));
  EXPECT_TRUE(cache.Touch("t", std::vector<int32_t>{9, 1, 2}));
  cache.Insert("t", {"t"}, std::vector<int32_t>{7}, StateOf(1, 6000), 1);
  EXPECT_FALSE(cache.Touch("t", std::vector<int32_t>{7})) << "larger than all memory";
  cache.SetMemory(0);
  EXPECT_EQ(cache.stats().entries, 0);
  EXPECT_EQ(cache.stats().bytes, 0u);
}

class PrefixRunTest : public ::testing::Test {
 protected:
  PrefixRunTest() {
    context_.tokenizer = &tokenizer_;
    context_.vocab_size = kFakeVocab;
    context_.eos_ids = {testing::kFakeEos};
    context_.max_step_tokens = 16;
    context_.observer = &observer_;
  }
  Collected Run(const GenerateRequest& request, PrefixCache* cache) {
    SequenceContext context = context_;
    context.prefix_cache = cache;
    auto stream = std::make_shared<EventStream>(10000);
    Scheduler scheduler(
        &model_, context,
        {.max_sequences = 2, .slot_memory = 200, .stall_deadline = std::chrono::hours(1)});
    scheduler.Add(std::make_unique<GenerateSequence>(
        context, 1, request, request.params.max_tokens.value_or(10), 5, stream));
    Collected out;
    for (int i = 0; i < 10000 && !out.finish; ++i) {
      scheduler.Tick();
      out.Drain(stream.get());
    }
    EXPECT_TRUE(out.finish.has_value());
    return out;
  }

  testing::FakeModel model_;
  testing::FakeTokenizer tokenizer_;
  EngineObserver observer_;
  SequenceContext context_;
};

TEST_F(PrefixRunTest, SaysWhatItTookOrWhyNot) {
  PrefixCache cache({.memory = 1 << 20, .min_tokens = 16, .every = 0});
  GenerateRequest request;
  request.prompt = Count(20);
  const auto finish = [&](PrefixCache* with) { return *Run(request, with).finish; };
  EXPECT_EQ(finish(nullptr).cache_miss, CacheMiss::kDisabled);
  EXPECT_EQ(finish(&cache).cache_miss, CacheMiss::kNoPrefix);
  EXPECT_EQ(finish(&cache).cache_miss, CacheMiss::kNone);
  EXPECT_EQ(finish(&cache).usage.cached_tokens, 19);
  EXPECT_EQ(finish(&cache).usage.prompt_tokens, 20);
  request.info.tenant = "other";
  EXPECT_EQ(finish(&cache).cache_miss, CacheMiss::kNoPrefix);
  request.info.tenant = "";
  request.prompt.resize(10);
  EXPECT_EQ(finish(&cache).cache_miss, CacheMiss::kTooShort);
  request.cache.points = {5, 8};
  EXPECT_EQ(finish(&cache).cache_miss, CacheMiss::kTooShort);
  EXPECT_EQ(finish(&cache).usage.cached_tokens, 8) << "points are stored whatever the length";
  request.cache.read = false;
  EXPECT_EQ(finish(&cache).cache_miss, CacheMiss::kDisabled);
  request.cache = {.read = true, .write = false, .points = {3}};
  request.prompt = {7, 7, 7, 7, 7};
  Run(request, &cache);
  EXPECT_EQ(finish(&cache).usage.cached_tokens, 0);
}

// One context with several endings: it is processed once.
TEST_F(PrefixRunTest, LogprobsFromTheEndOfAContext) {
  PrefixCache cache({.memory = 1 << 20, .min_tokens = 16, .every = 0});
  GenerateRequest request;
  request.params.max_tokens = 0;
  request.params.echo = true;
  request.params.logprobs = 1;
  for (int ending = 0; ending < 4; ++ending) {
    request.prompt = Count(100);
    for (int i = 0; i <= ending * 9; ++i) request.prompt.push_back(40 + ending);
    request.params.logprobs_from = 0;
    const Collected whole = Run(request, &cache);
    EXPECT_EQ(whole.finish->cache_miss, CacheMiss::kDisabled);
    request.params.logprobs_from = 100;
    request.cache.write = true;
    const Collected got = Run(request, &cache);
    // The row of the last token of the context is needed.
    EXPECT_EQ(got.finish->usage.cached_tokens, 99);
    EXPECT_EQ(got.echoed, request.prompt);
    ASSERT_EQ(got.logprobs.size(), whole.logprobs.size());
    for (size_t i = 0; i < got.logprobs.size(); ++i)
      EXPECT_EQ(got.logprobs[i], i < 100 ? std::nullopt : whole.logprobs[i]) << i;
    request.cache.write = false;  // of the next whole prompt
  }
}

// Requests over few histories, so that hits of every kind come up; memory for some of them only.
TEST_F(PrefixRunTest, TheOutputIsThatOfAColdRun) {
  Random random(1);
  PrefixCache cache({.memory = 6000, .min_tokens = 12, .every = 16});
  std::map<std::string, std::vector<int32_t>> histories;
  int64_t cached = 0;
  for (int i = 0; i < testing::Count(1000, 20000); ++i) {
    GenerateRequest request;
    request.info.tenant = std::string(1, static_cast<char>('a' + random.Int(0, 2)));
    std::vector<int32_t>& history = histories[request.info.tenant];
    history.resize(static_cast<size_t>(random.Int(0, std::ssize(history))));
    for (int64_t n = random.Int(1, 40); n > 0; --n) {
      history.push_back(static_cast<int32_t>(random.Int(2, 5)));
    }
    request.prompt = history;
    GenerateParams& params = request.params;
    params.max_tokens = static_cast<int32_t>(random.Int(0, 12));
    params.sampling.repetition_penalty = random.Uniform() < 0.3 ? 1.2f : 1.0f;
    if (random.Uniform() < 0.3) params.logprobs = 2;
    params.echo = random.Uniform() < 0.3;
    if (params.echo && params.logprobs) params.logprobs_from = random.Int(0, 60);
    if (random.Uniform() < 0.3) request.cache.points = {3, random.Int(4, 60)};
    const Collected want = Run(request, nullptr);
    const Collected got = Run(request, &cache);
    ASSERT_EQ(got.tokens, want.tokens) << i;
    ASSERT_EQ(got.echoed, want.echoed) << i;
    ASSERT_EQ(got.text, want.text) << i;
    ASSERT_EQ(got.logprobs, want.logprobs) << i;
    ASSERT_EQ(got.finish->usage.prompt_tokens, want.finish->usage.prompt_tokens);
    cached += got.finish->usage.cached_tokens;
    ASSERT_EQ(got.finish->usage.cached_tokens > 0, got.finish->cache_miss == CacheMiss::kNone);
  }
  EXPECT_GT(cached, 1000);
  EXPECT_GT(cache.stats().evicted, 100);
}

}  // namespace
}  // namespace polysketch
