// Stored prompts: which are found, which are not, and that the output is the same either way.
#include "engine/prefix_cache/prefix_cache.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

std::shared_ptr<const SavedState> StateOf(int64_t tokens, size_t bytes = 10000) {
  auto state = std::make_shared<SavedState>();
  state->position = tokens;
  state->bytes.resize(bytes);
  return state;
}

std::vector<int32_t> Count(int64_t n) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i % 50);
  return tokens;
}

// A text of its own for each number.
std::vector<int32_t> NumberedText(int64_t number, int64_t n) {
  std::vector<int32_t> tokens = Count(n);
  tokens[0] = static_cast<int32_t>(100 + number);
  return tokens;
}

// Returns whether it was stored.
bool Put(PrefixCache* cache, const std::string& salt, const Principal& principal,
         const std::vector<int32_t>& tokens, int64_t earliest, size_t bytes = 10000) {
  auto room = cache->Reserve(salt, principal, tokens, {bytes});
  if (!room) return false;
  cache->Store(*std::move(room), StateOf(std::ssize(tokens), bytes), earliest);
  return true;
}

bool Put(PrefixCache* cache, const std::vector<int32_t>& tokens, size_t bytes = 10000) {
  return Put(cache, "t", {"t"}, tokens, std::ssize(tokens), bytes);
}

int64_t Found(PrefixCache* cache, const std::string& salt, const std::vector<int32_t>& prompt) {
  const auto hit = cache->Find(salt, prompt, std::ssize(prompt) - 1);
  return hit ? hit->tokens : 0;
}

// Whether the state of exactly these tokens is stored.
bool Has(PrefixCache* cache, const std::string& salt, std::vector<int32_t> tokens) {
  tokens.push_back(99);
  const auto hit = cache->Find(salt, tokens, std::ssize(tokens) - 1);
  return hit && hit->state->position + 1 == std::ssize(tokens);
}

TEST(PrefixCacheTest, LongestExactPrefixOfTheTenant) {
  PrefixCache cache({.memory = 1 << 20});
  for (const int length : {4, 10, 20}) Put(&cache, "t", {"t"}, Count(length), length);
  Put(&cache, "u", {"u"}, Count(30), 30);
  EXPECT_EQ(Found(&cache, "t", Count(40)), 20);
  EXPECT_EQ(Found(&cache, "t", Count(21)), 20);
  EXPECT_EQ(Found(&cache, "t", Count(15)), 10);
  EXPECT_EQ(Found(&cache, "t", Count(3)), 0);
  EXPECT_EQ(Found(&cache, "u", Count(40)), 30);
  EXPECT_EQ(Found(&cache, "", Count(40)), 0);
  EXPECT_EQ(Found(&cache, "tu", Count(40)), 0);
  std::vector<int32_t> other = Count(40);
  other[12] = 49;
  EXPECT_EQ(Found(&cache, "t", other), 10);
  other[3] = 49;
  EXPECT_EQ(Found(&cache, "t", other), 0);
}

TEST(PrefixCacheTest, ATenantThatStoresMuchEvictsItsOwn) {
  PrefixCache cache({.memory = 20 * 12000});
  const auto put = [&](const std::string& tenant, int i) {
    Put(&cache, tenant, {tenant}, NumberedText(i, 20), 20);
  };
  const auto has = [&](const std::string& tenant, int i) {
    return Has(&cache, tenant, NumberedText(i, 20));
  };
  for (const int i : {1, 2}) put("u", i);
  for (int i = 0; i < 40; ++i) put("t", i);
  EXPECT_TRUE(has("u", 1) && has("u", 2)) << "older than all, and within the share";
  EXPECT_TRUE(has("t", 39));
  EXPECT_FALSE(has("t", 0));
  EXPECT_GT(cache.stats().entries, 12) << "what a tenant leaves, others use";
  for (int i = 0; i < 40; ++i) put("u", i);
  EXPECT_TRUE(has("t", 39)) << "a tenant at its share keeps its newest";
  EXPECT_GT(cache.stats().bytes, size_t{15 * 12000});
  EXPECT_LE(cache.stats().bytes, cache.memory());
  cache.SetMemory(0);
  EXPECT_EQ(cache.stats().entries, 0);
  EXPECT_EQ(cache.stats().bytes, 0u);
  EXPECT_EQ(cache.stats().text_bytes, 0u);
}

// Clients without a tenant have one salt: each finds what any of them stores, and holds its own.
TEST(PrefixCacheTest, AClientThatStoresMuchEvictsItsOwn) {
  PrefixCache cache({.memory = 20 * 12000});
  const auto put = [&](const std::string& client, int i) {
    return Put(&cache, "", {client}, NumberedText(i, 20), 20);
  };
  const auto has = [&](int i) { return Has(&cache, "", NumberedText(i, 20)); };
  for (const int i : {1, 2}) put("few", i);
  for (int i = 20; i < 60; ++i) put("many", i);
  EXPECT_TRUE(has(1) && has(2)) << "older than all, and within the share";
  EXPECT_FALSE(has(20));
  EXPECT_TRUE(has(59));
  // A state stays that of the client that stored it.
  EXPECT_FALSE(put("few", 59));
  for (int i = 60; i < 100; ++i) put("many", i);
  EXPECT_FALSE(has(59));
  EXPECT_TRUE(has(1) && has(2));
}

// The whole prompt is stored, and a token of it must run: only if the last one can be cut off.
TEST(PrefixCacheTest, TheSamePromptAgain) {
  PrefixCache cache({.memory = 1 << 20});
  Put(&cache, "t", {"t"}, Count(8), 0);
  Put(&cache, "t", {"t"}, Count(12), 9);
  Put(&cache, "t", {"t"}, Count(17), 17);
  EXPECT_EQ(Found(&cache, "t", Count(12)), 11);
  EXPECT_EQ(Found(&cache, "t", Count(17)), 12) << "token 16 began a block";
  EXPECT_EQ(Found(&cache, "t", Count(18)), 17);
  EXPECT_EQ(Found(&cache, "t", {0}), 0);
}

// A prompt that goes along with a state up to a token of its last block.
TEST(PrefixCacheTest, PartsOfAState) {
  PrefixCache cache({.memory = 1 << 20, .min_tokens = 10});
  Put(&cache, "t", {"t"}, Count(20), 17);
  Put(&cache, "t", {"t"}, Count(12), 5);
  const auto found = [&](size_t common) {
    std::vector<int32_t> prompt = Count(40);
    prompt[common] = 51;
    return Found(&cache, "t", prompt);
  };
  EXPECT_EQ(found(30), 20);
  EXPECT_EQ(found(19), 19);
  EXPECT_EQ(found(17), 17);
  EXPECT_EQ(found(16), 12) << "before the longer one's last block";
  EXPECT_EQ(found(11), 11);
  EXPECT_EQ(found(9), 0) << "too few to be worth a copy";
  EXPECT_EQ(Found(&cache, "t", Count(18)), 17);
  EXPECT_EQ(Found(&cache, "t", Count(17)), 12);
}

// KV caches: the longest serves every beginning, so that a shorter one is neither stored nor kept.
TEST(PrefixCacheTest, OneStateOnAPath) {
  PrefixCache cache({.memory = 1 << 20, .min_tokens = 10});
  EXPECT_TRUE(Put(&cache, "t", {"t"}, Count(5), 0));
  EXPECT_TRUE(Put(&cache, "t", {"t"}, Count(20), 0));
  EXPECT_TRUE(Put(&cache, "t", {"t"}, Count(30), 0));
  EXPECT_EQ(cache.stats().entries, 2) << "the one of 20 tokens is served by that of 30";
  EXPECT_EQ(cache.stats().evicted, 0);
  EXPECT_FALSE(Put(&cache, "t", {"t"}, Count(25), 0));
  EXPECT_EQ(Found(&cache, "t", Count(26)), 25);
  EXPECT_TRUE(Has(&cache, "t", Count(5))) << "few tokens are served by their own state only";
  // Of a prompt's beginning the shortest state is copied.
  std::vector<int32_t> other = Count(60);
  other[22] = 51;
  EXPECT_TRUE(Put(&cache, "t", {"t"}, other, 0));
  std::vector<int32_t> third = Count(50);
  third[22] = 52;
  EXPECT_EQ(cache.Find("t", third, 49)->state->position, 30);
  EXPECT_EQ(Found(&cache, "t", third), 22);
  // That of another client stays: what it stores is its own matter.
  EXPECT_TRUE(Put(&cache, "t", {"u"}, Count(40), 0));
  EXPECT_TRUE(Has(&cache, "t", Count(30)));
}

TEST(PrefixCacheTest, KnowsWhereTextsPart) {
  PrefixCache cache({.memory = 1 << 20});
  EXPECT_EQ(cache.Learn("t", {"t"}, NumberedText(0, 100)), 0);
  EXPECT_EQ(cache.Learn("t", {"t"}, NumberedText(0, 100)), 100);
  std::vector<int32_t> other = NumberedText(0, 120);
  other[60] = 51;
  EXPECT_EQ(cache.Learn("t", {"t"}, other), 60);
  EXPECT_EQ(cache.Learn("t", {"t"}, NumberedText(0, 120)), 100);
  EXPECT_EQ(cache.Learn("u", {"t"}, other), 0);
  EXPECT_EQ(cache.stats().entries, 0);
  EXPECT_EQ(cache.stats().bytes, cache.stats().text_bytes);
  // Texts have a small part of the memory; the least recently used are forgotten.
  for (int i = 1; i < 1000; ++i) {
    EXPECT_EQ(cache.Learn("t", {"t"}, NumberedText(i, 500)), 0);
    EXPECT_EQ(cache.Learn("t", {"t"}, other), 120) << i;
    ASSERT_LE(cache.stats().text_bytes, cache.memory() / 32);
  }
  EXPECT_EQ(cache.Learn("t", {"t"}, NumberedText(999, 500)), 500);
  EXPECT_EQ(cache.Learn("t", {"t"}, NumberedText(1, 500)), 0);
  EXPECT_EQ(cache.Learn("t", {"t"}, NumberedText(0, 10000)), 60) << "larger than their part";
  cache.SetMemory(100);
  EXPECT_EQ(cache.stats().bytes, 0u);
  EXPECT_EQ(cache.Learn("t", {"t"}, other), 0);
  EXPECT_EQ(cache.Learn("t", {"t"}, other), 0);
}

// A client that names many texts forgets its own.
TEST(PrefixCacheTest, TextsAreShared) {
  PrefixCache cache({.memory = 1 << 20});
  for (int i = 0; i < 4; ++i) cache.Learn("", {"few"}, NumberedText(i, 500));
  for (int i = 10; i < 100; ++i) cache.Learn("", {"many"}, NumberedText(i, 500));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(cache.Learn("", {"few"}, NumberedText(i, 500)), 500);
}

TEST(PrefixCacheTest, RoomIsCountedBeforeItIsTaken) {
  PrefixCache cache({.memory = 50000});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Put(&cache, NumberedText(i, 20)));
  EXPECT_EQ(cache.stats().entries, 4);
  {
    const auto room = cache.Reserve("t", {"t"}, NumberedText(4, 20), {10000});
    ASSERT_TRUE(room.has_value());
    EXPECT_EQ(cache.stats().entries, 3);
    EXPECT_LE(cache.stats().bytes, 50000u);
    EXPECT_GT(cache.stats().bytes, 40000u);
    EXPECT_FALSE(cache.Reserve("t", {"t"}, NumberedText(4, 20), {10000}).has_value())
        << "being saved";
    EXPECT_FALSE(Has(&cache, "t", NumberedText(4, 20))) << "not yet";
    // A large one finds no room beside it, and evicts nothing in vain.
    EXPECT_FALSE(cache.Reserve("t", {"t"}, NumberedText(5, 20), {45000}).has_value());
    EXPECT_EQ(cache.stats().entries, 3);
    cache.SetMemory(5000);
    EXPECT_EQ(cache.stats().entries, 0);
  }
  EXPECT_LE(cache.stats().bytes, 5000u) << "the room is free again";
  EXPECT_FALSE(Put(&cache, NumberedText(4, 20)));
  cache.SetMemory(0);
  EXPECT_EQ(cache.stats().bytes, 0u);
}

TEST(PrefixCacheTest, WhatSavesLittleIsEvictedFirst) {
  PrefixCache cache({.memory = 100000});
  EXPECT_TRUE(Put(&cache, NumberedText(0, 2000)));
  // A shared beginning, and texts that go on from it.
  EXPECT_TRUE(Put(&cache, NumberedText(1, 1000)));
  for (int i = 0; i < 20; ++i) {
    std::vector<int32_t> text = NumberedText(1, 1100);
    text[1000] = 60 + i;
    EXPECT_TRUE(Put(&cache, text));
  }
  EXPECT_GT(cache.stats().evicted, 10);
  EXPECT_TRUE(Has(&cache, "t", NumberedText(0, 2000)));
  EXPECT_TRUE(Has(&cache, "t", NumberedText(1, 1000)));
  // Of states that save as much the larger one goes first.
  cache.SetMemory(0);
  cache.SetMemory(100000);
  EXPECT_TRUE(Put(&cache, NumberedText(2, 1000), 50000));
  for (int i = 3; i < 9; ++i) EXPECT_TRUE(Put(&cache, NumberedText(i, 1000)));
  EXPECT_FALSE(Has(&cache, "t", NumberedText(2, 1000)));
  for (int i = 3; i < 9; ++i) EXPECT_TRUE(Has(&cache, "t", NumberedText(i, 1000)));
}

// What no request uses goes in the end, however much it would save.
TEST(PrefixCacheTest, AgeCounts) {
  PrefixCache cache({.memory = 100000});
  EXPECT_TRUE(Put(&cache, NumberedText(0, 1000)));
  EXPECT_TRUE(Put(&cache, NumberedText(1, 1000)));
  int stays = 0;
  for (int i = 2; i < 400; ++i) {
    Put(&cache, NumberedText(i, 100));
    stays += Has(&cache, "t", NumberedText(0, 1000)) ? 1 : 0;  // a use
  }
  EXPECT_EQ(stays, 398);
  EXPECT_FALSE(Has(&cache, "t", NumberedText(1, 1000)));
}

// After the state before it on its path a state saves more.
TEST(PrefixCacheTest, AStateIsWorthWhatItSavesBesideOthers) {
  PrefixCache cache({.memory = 42000});
  EXPECT_TRUE(Put(&cache, NumberedText(0, 900)));
  EXPECT_TRUE(Put(&cache, NumberedText(0, 1000)));
  EXPECT_TRUE(Put(&cache, NumberedText(1, 500)));
  EXPECT_TRUE(Put(&cache, NumberedText(2, 600)))
      << "in place of the one that saves 100 tokens more";
  EXPECT_TRUE(Has(&cache, "t", NumberedText(0, 900)));
  EXPECT_FALSE(Has(&cache, "t", NumberedText(0, 1000)));
  EXPECT_TRUE(Has(&cache, "t", NumberedText(1, 500)));
  // What would save less than all others is not stored, but its next attempt has a better chance.
  int attempts = 1;
  while (!Put(&cache, NumberedText(3, 100))) ++attempts;
  EXPECT_GT(attempts, 1);
  EXPECT_LT(attempts, 20);
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
  PrefixCache cache({.memory = 20000, .min_tokens = 12, .every = 16});
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
