// Memory of the prefix cache whose states share blocks: a block counts once.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/prefix_cache/prefix_cache.h"
#include "gtest/gtest.h"
#include "tests/engine/testing/block_states.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::BlockStates;
using testing::Random;
using Text = std::vector<int32_t>;

constexpr size_t kBlock = size_t{1} << 30;  // nothing is allocated
constexpr int64_t kBlockTokens = 4;
constexpr size_t kTexts = size_t{1} << 20;  // more than all texts and own bytes of a test

size_t BlocksOf(int64_t tokens) {
  return static_cast<size_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

StateMemory MemoryOf(const SavedState& state) {
  return {state.own_bytes(), {state.blocks().begin(), state.blocks().end()}};
}

bool Put(PrefixCache* cache, const Principal& principal, const Text& text,
         const std::shared_ptr<const SavedState>& state) {
  auto room = cache->Reserve("t", principal, text, MemoryOf(*state));
  if (!room) return false;
  cache->Store(*std::move(room), state, /*earliest_truncation=*/1);
  return true;
}

TEST(PrefixBlocksTest, ATurnNeedsRoomForItsNewBlocks) {
  BlockStates states(kBlock);
  PrefixCache cache({.memory = 12 * kBlock + kTexts, .min_tokens = 4});
  Text text;
  std::shared_ptr<const SavedState> last;
  for (int turn = 0; turn < 5; ++turn) {
    text.resize(text.size() + 8, turn);
    const size_t before = last == nullptr ? 0 : last->blocks().size();
    const auto state = states.Make(std::ssize(text), last.get(), before, before + 2, 100);
    ASSERT_TRUE(Put(&cache, {"client"}, text, state)) << turn;
    last = state;
    EXPECT_EQ(cache.stats().bytes / kBlock, 2u * (static_cast<size_t>(turn) + 1));
  }
  EXPECT_EQ(cache.stats().evicted, 0);
  EXPECT_EQ(cache.stats().entries, 1);
}

TEST(PrefixBlocksTest, ASharedBeginningCountsOnce) {
  BlockStates states(kBlock);
  PrefixCache cache({.memory = 30 * kBlock + kTexts, .min_tokens = 4});
  const Text system(80, 7);
  std::shared_ptr<const SavedState> first;
  for (int user = 0; user < 10; ++user) {
    Text text = system;
    text.resize(84, user);
    const auto state = states.Make(84, first.get(), first == nullptr ? 0 : 20, 21, 100);
    if (first == nullptr) first = state;
    ASSERT_TRUE(Put(&cache, {user < 5 ? "a" : "b"}, text, state)) << user;
  }
  EXPECT_EQ(cache.stats().bytes / kBlock, 30u);
  EXPECT_EQ(cache.stats().evicted, 0);
  EXPECT_EQ(cache.stats().entries, 10);
}

// What is counted is what is held, at every moment, with texts that begin alike and two clients.
TEST(PrefixBlocksTest, CountsWhatIsHeld) {
  int64_t evicted = 0, hits = 0;
  for (int seed = 0; seed < testing::Count(30, 1000); ++seed) {
    Random random(static_cast<uint64_t>(seed));
    BlockStates states(kBlock);
    size_t memory = 40 * kBlock + kTexts;
    PrefixCache cache({.memory = memory, .min_tokens = random.Int(1, 8)});
    std::vector<Text> texts(1);
    for (int step = 0; step < 150; ++step) {
      Text text = texts[static_cast<size_t>(random.Int(0, std::ssize(texts) - 1))];
      text.resize(static_cast<size_t>(random.Int(0, std::ssize(text))));
      for (int64_t i = random.Int(1, 12); i > 0; --i) {
        text.push_back(static_cast<int32_t>(random.Int(0, 1)));
      }
      if (texts.size() < 20) texts.push_back(text);
      const Principal client{random.Uniform() < 0.5 ? "a" : "b", ""};
      // As a sequence does: it begins from what is found, and its tail is its own.
      std::shared_ptr<const SavedState> state;
      {
        const auto hit = cache.Find("t", text, std::ssize(text) - 1);
        hits += hit.has_value();
        const size_t whole = hit ? static_cast<size_t>(hit->tokens / kBlockTokens) : 0;
        state = states.Make(std::ssize(text), hit ? hit->state.get() : nullptr, whole,
                            BlocksOf(std::ssize(text)), static_cast<size_t>(random.Int(0, 100)));
      }
      if (random.Uniform() < 0.3) cache.Learn("t", client, text);
      if (auto room = cache.Reserve("t", client, text, MemoryOf(*state)); room) {
        ASSERT_LE(cache.stats().bytes, memory);
        if (random.Uniform() < 0.9)
          cache.Store(*std::move(room), state, random.Uniform() < 0.8 ? 1 : std::ssize(text));
      }
      state = nullptr;
      if (random.Uniform() < 0.05) {
        cache.SetMemory(memory = static_cast<size_t>(random.Int(0, 60)) * kBlock + kTexts);
      }
      ASSERT_LE(cache.stats().bytes, memory);
      const size_t held = states.Held();
      ASSERT_GE(cache.stats().bytes, held) << "seed " << seed << ", step " << step;
      ASSERT_LT(cache.stats().bytes, held + kTexts) << "seed " << seed << ", step " << step;
    }
    evicted += cache.stats().evicted;
    cache.SetMemory(0);
    ASSERT_EQ(cache.stats().bytes, 0u);
    ASSERT_EQ(states.Held(), 0u);
  }
  EXPECT_GT(evicted, 100);
  EXPECT_GT(hits, 100);
}

}  // namespace
}  // namespace polysketch
