// The tree of known texts, and the cache in it, beside lists that are searched whole.
#include "engine/prefix_cache/prefix_tree.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/prefix_cache/prefix_cache.h"
#include "gtest/gtest.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;
using Text = std::vector<int32_t>;

int64_t Common(const Text& a, const Text& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

std::shared_ptr<const SavedState> SavedAt(int64_t position, size_t bytes) {
  auto state = std::make_shared<SavedState>();
  state->position = position;
  state->bytes.resize(bytes);
  return state;
}

// Texts that often begin alike: from a former one up to a random place, then few different tokens.
class Texts {
 public:
  explicit Texts(Random* random) : random_(*random) {}

  const Text& Next() {
    Text text;
    if (!all_.empty() && random_.Uniform() < 0.8) {
      text = all_[static_cast<size_t>(random_.Int(0, std::ssize(all_) - 1))];
      text.resize(static_cast<size_t>(random_.Int(0, std::ssize(text))));
    }
    const int64_t more = random_.Uniform() < 0.2 ? 0 : random_.Int(1, 30);
    for (int64_t i = 0; i < more; ++i) text.push_back(static_cast<int32_t>(random_.Int(0, 2)));
    if (text.empty()) text.push_back(0);
    if (all_.size() < 200) return all_.emplace_back(std::move(text));
    Text& old = all_[static_cast<size_t>(random_.Int(0, 199))];
    return old = std::move(text);
  }

 private:
  Random& random_;
  std::vector<Text> all_;
};

// The tokens from the root to the end of a node.
Text TextOf(const PrefixTree::Node* node) {
  std::vector<const PrefixTree::Node*> path;
  for (; node != nullptr; node = node->parent) path.push_back(node);
  Text text;
  for (auto at = path.rbegin(); at != path.rend(); ++at)
    text.insert(text.end(), (*at)->tokens.begin(), (*at)->tokens.end());
  return text;
}

TEST(PrefixTreeTest, BesideAListOfTexts) {
  for (int seed = 0; seed < testing::Count(30, 1000); ++seed) {
    Random random(static_cast<uint64_t>(seed));
    Texts texts(&random);
    PrefixTree tree;
    struct Known {
      PrefixTree::Node* node = nullptr;
      int64_t earliest = 0;  // of its state; 0: none
    };
    std::map<std::pair<std::string, Text>, Known> known;
    for (int step = 0; step < 300; ++step) {
      const std::string salt(1, static_cast<char>('a' + random.Int(0, 1)));
      const Text text = texts.Next();
      int64_t want = 0;
      for (const auto& [key, value] : known) {
        if (key.first == salt) want = std::max(want, Common(key.second, text));
      }
      const PrefixTree::Match match = tree.Find(salt, text);
      ASSERT_EQ(match.tokens, want);
      if (match.node != nullptr) {
        ASSERT_LE(match.tokens, match.node->end);
        ASSERT_TRUE(match.node->root() || match.tokens > match.node->begin());
        const Text at = TextOf(match.node);
        ASSERT_EQ(std::ssize(at), match.node->end);
        ASSERT_EQ(Common(at, text), match.tokens);
      }

      const double what = random.Uniform();
      const auto some = [&]() -> std::optional<std::pair<std::pair<std::string, Text>, Known>> {
        if (known.empty()) return std::nullopt;
        return *std::next(known.begin(), random.Int(0, std::ssize(known) - 1));
      };
      if (what < 0.6) {
        const size_t nodes = tree.size();
        const auto extended = tree.Extend(match, salt, text);
        ASSERT_EQ(TextOf(extended.end), text);
        ASSERT_EQ(extended.end->end, std::ssize(text));
        ASSERT_LE(tree.size(), nodes + 3);
        known.try_emplace({salt, text}, Known{extended.end});
      } else if (what < 0.85) {
        if (const auto one = some(); one && one->second.earliest == 0) {
          const int64_t earliest = random.Int(1, one->second.node->end);
          tree.Store(one->second.node, SavedAt(one->second.node->end, 1), earliest);
          known[one->first].earliest = earliest;
        }
      } else if (const auto one = some(); one) {
        if (one->second.earliest > 0) {
          tree.DropState(one->second.node);
          known[one->first].earliest = 0;
        } else if (one->second.node->leaf()) {
          tree.Remove(one->second.node);
          known.erase(one->first);
          // Nodes at which texts parted stay known: the test forgets them too.
          for (bool again = true; again;) {
            again = false;
            for (const auto& [key, value] : known) ASSERT_EQ(TextOf(value.node), key.second);
            std::set<PrefixTree::Node*> of_texts;
            for (const auto& [key, value] : known) of_texts.insert(value.node);
            const PrefixTree::Match left = tree.Find(one->first.first, one->first.second);
            if (left.node != nullptr && left.node->leaf() && !of_texts.contains(left.node)) {
              tree.Remove(left.node);
              again = true;
            }
          }
        }
      }
      // What each node says of the states below it.
      for (const auto& [key, value] : known) {
        for (const PrefixTree::Node* node = value.node; node != nullptr; node = node->parent) {
          const Text beginning = TextOf(node);
          int64_t states = 0;
          std::pair<int64_t, int64_t> widest{INT64_MAX, 0};
          for (const auto& [other, of_other] : known) {
            if (other.first != key.first || of_other.earliest == 0 ||
                Common(other.second, beginning) < std::ssize(beginning))
              continue;
            ++states;
            widest = std::min(widest, {of_other.earliest, of_other.node->end});
          }
          ASSERT_EQ(node->states, states);
          ASSERT_EQ(node->widest == nullptr, states == 0);
          if (states == 0) continue;
          ASSERT_EQ(std::pair(node->widest->earliest_truncation, node->widest->end), widest);
        }
        if (step % 20 != 0) break;  // all of them now and then
      }
    }
  }
}

// As deep as a prompt is long: nothing recurses.
TEST(PrefixTreeTest, ADeepTree) {
  PrefixCache cache({.memory = size_t{4} << 30, .min_tokens = 1});
  const int tokens = testing::kSanitized && !testing::FullCounts() ? 4000 : 20000;
  const Text text(tokens, 7);
  for (size_t size = text.size(); size > 0; --size) {
    cache.Learn("t", {"t"}, std::span(text).first(size));
  }
  EXPECT_EQ(cache.Learn("t", {"t"}, text), tokens);
  auto room = cache.Reserve("t", {"t"}, text, {10});
  ASSERT_TRUE(room.has_value());
  cache.Store(*std::move(room), SavedAt(tokens, 10), 0);
  EXPECT_EQ(cache.Find("t", text, 100)->tokens, 100);
  EXPECT_GT(cache.stats().bytes, tokens * sizeof(PrefixTree::Node));
  cache.SetMemory(0);
  EXPECT_EQ(cache.stats().bytes, 0u);
}

// Sessions change the limit on other threads.
TEST(PrefixTreeTest, TheLimitChangesMeanwhile) {
  PrefixCache cache({.memory = 100000, .min_tokens = 4});
  std::atomic<bool> stop = false;
  std::thread sessions([&] {
    Random random(1);
    while (!stop) {
      cache.SetMemory(static_cast<size_t>(random.Int(0, 200000)));
      const auto stats = cache.stats();
      EXPECT_GE(stats.stored, stats.entries);
    }
  });
  Random random(2);
  Texts texts(&random);
  // How often the limit leaves something to find is up to the scheduler of the system.
  const int count = testing::Count(5000, 100000);
  for (int i = 0; i < count || (i < 20 * count && cache.stats().hit_tokens <= 1000); ++i) {
    const Text text = texts.Next();
    cache.Learn("t", {"t"}, text);
    const auto hit = cache.Find("t", text, std::ssize(text));
    EXPECT_TRUE(!hit || hit->state->position >= hit->tokens);
    if (auto room = cache.Reserve("t", {"t"}, text, {1000}); room && random.Uniform() < 0.9)
      cache.Store(*std::move(room), SavedAt(std::ssize(text), 1000), random.Int(0, 3));
  }
  stop = true;
  sessions.join();
  EXPECT_GT(cache.stats().hit_tokens, 1000);
}

// A cache whose memory suffices finds as much as a search through all states, and states of the
// kind that was asked for.
TEST(PrefixTreeTest, TheCacheBesideAList) {
  struct Stored {
    std::string salt;
    std::string client;
    Text text;
    int64_t earliest;
    std::shared_ptr<const SavedState> state;
  };
  int64_t hits = 0, parts = 0;
  const int seeds = testing::Count(60, 2000);
  for (int seed = 0; seed < seeds; ++seed) {
    Random random(static_cast<uint64_t>(seed));
    Texts texts(&random);
    const int64_t min_tokens = random.Int(1, 20);
    const double kv = random.Uniform() < 0.3 ? 1 : random.Uniform() < 0.5 ? 0 : 0.5;
    PrefixCache cache({.memory = size_t{1} << 30, .min_tokens = min_tokens});
    std::vector<Stored> all;
    std::map<std::string, std::vector<Text>> known;
    std::vector<PrefixCache::Room> open;
    std::vector<Stored> of_open;
    const auto usable = [&](const Stored& one, const Text& text, int64_t max) -> int64_t {
      const int64_t size = std::ssize(one.text);
      const int64_t common = Common(one.text, text), tokens = std::min(common, max);
      if (tokens == size) return tokens;
      if (one.earliest > tokens) return 0;
      return common == size || tokens >= min_tokens ? tokens : 0;
    };
    for (int step = 0; step < 200; ++step) {
      const std::string salt(1, static_cast<char>('a' + random.Int(0, 1)));
      const std::string client(1, static_cast<char>('x' + random.Int(0, 1)));
      const Text text = texts.Next();
      const int64_t size = std::ssize(text);
      const int64_t max = random.Uniform() < 0.5 ? size - 1 : random.Int(0, size);
      int64_t want = 0, known_tokens = 0;
      for (const Stored& one : all) {
        if (one.salt == salt) want = std::max(want, usable(one, text, max));
      }
      for (const Text& one : known[salt]) known_tokens = std::max(known_tokens, Common(one, text));
      const auto hit = cache.Find(salt, text, max);
      ASSERT_EQ(hit ? hit->tokens : 0, want);
      if (hit) {
        ++hits;
        parts += hit->state->position > want ? 1 : 0;
        ASSERT_TRUE(std::ranges::any_of(all, [&](const Stored& one) {
          return one.salt == salt && one.state == hit->state && usable(one, text, max) == want;
        }));
      }
      if (random.Uniform() < 0.3) {
        ASSERT_EQ(cache.Learn(salt, {client}, text), known_tokens);
        known[salt].push_back(text);
      }
      if (random.Uniform() < 0.6) {
        const bool provided = std::ranges::any_of(all, [&](const Stored& one) {
          return one.salt == salt && usable(one, text, size) == size;
        });
        const bool saving = std::ranges::any_of(
            of_open, [&](const Stored& one) { return one.salt == salt && one.text == text; });
        auto room = cache.Reserve(salt, {client}, text, {10});
        ASSERT_EQ(room.has_value(), !provided && !saving);
        if (room) {
          known[salt].push_back(text);
          const int64_t earliest =
              random.Uniform() < kv ? 1 : random.Int(std::max<int64_t>(1, size - 8), size);
          open.push_back(*std::move(room));
          of_open.push_back({salt, client, text, earliest, SavedAt(size, 10)});
        }
      }
      while (!open.empty() && random.Uniform() < 0.7) {
        PrefixCache::Room room = std::move(open.back());
        open.pop_back();
        const Stored one = of_open.back();
        of_open.pop_back();
        if (random.Uniform() < 0.2) continue;  // abandoned
        cache.Store(std::move(room), one.state, one.earliest);
        std::erase_if(all, [&](const Stored& other) {
          const int64_t before = std::ssize(other.text);
          return other.salt == one.salt && other.client == one.client &&
                 before < std::ssize(one.text) && before >= min_tokens &&
                 Common(other.text, one.text) == before && one.earliest <= before;
        });
        all.push_back(one);
      }
      ASSERT_EQ(cache.stats().entries, std::ssize(all));
    }
    open.clear();
    cache.SetMemory(0);
    ASSERT_EQ(cache.stats().bytes, 0u);
  }
  EXPECT_GT(hits, seeds * 20);
  EXPECT_GT(parts, seeds * 5);
}

// With little memory: whatever is found is right, and the limit holds at every moment.
TEST(PrefixTreeTest, TheCacheWithinItsMemory) {
  int64_t hits = 0, evicted = 0;
  const int seeds = testing::Count(60, 2000);
  for (int seed = 0; seed < seeds; ++seed) {
    Random random(static_cast<uint64_t>(seed));
    Texts texts(&random);
    size_t memory = static_cast<size_t>(random.Int(0, 200000));
    PrefixCache cache({.memory = memory, .min_tokens = random.Int(1, 20)});
    std::map<const SavedState*, std::pair<std::pair<std::string, Text>, int64_t>> stored;
    std::vector<std::shared_ptr<const SavedState>> kept;  // so that no address comes twice
    size_t reserved = 0;
    std::vector<std::pair<PrefixCache::Room, std::pair<std::string, Text>>> open;
    std::vector<size_t> sizes;
    for (int step = 0; step < 400; ++step) {
      const std::string salt(1, static_cast<char>('a' + random.Int(0, 2)));
      const Principal client{std::string(1, static_cast<char>('x' + random.Int(0, 1))),
                             random.Uniform() < 0.5 ? "part" : ""};
      const Text text = texts.Next();
      const auto size = std::ssize(text);
      if (const auto hit = cache.Find(salt, text, size - 1); hit) {
        ++hits;
        const auto& [key, earliest] = stored.at(hit->state.get());
        ASSERT_EQ(key.first, salt);
        ASSERT_LE(hit->tokens, Common(key.second, text));
        ASSERT_LT(hit->tokens, size);
        ASSERT_TRUE(hit->tokens == hit->state->position || hit->tokens >= earliest);
      }
      if (random.Uniform() < 0.5) cache.Learn(salt, client, text);
      const auto bytes = static_cast<size_t>(random.Int(1, 20000));
      if (auto room = cache.Reserve(salt, client, text, {bytes}); room) {
        open.emplace_back(*std::move(room), std::pair(salt, text));
        sizes.push_back(bytes);
        reserved += bytes;
      }
      if (!open.empty() && random.Uniform() < 0.8) {
        auto [room, key] = std::move(open.back());
        open.pop_back();
        if (random.Uniform() < 0.9) {
          const auto state = SavedAt(std::ssize(key.second), sizes.back());
          const int64_t earliest = random.Int(1, std::ssize(key.second));
          stored[state.get()] = {key, earliest};
          kept.push_back(state);
          cache.Store(std::move(room), state, earliest);
        }
        reserved -= sizes.back();
        sizes.pop_back();
      }
      if (random.Uniform() < 0.02)
        cache.SetMemory(memory = static_cast<size_t>(random.Int(0, 200000)));
      const PrefixCacheStats stats = cache.stats();
      // States that are being saved, with their texts, may outlive a limit that has become lower.
      ASSERT_TRUE(!open.empty() || stats.bytes <= memory) << stats.bytes << " " << memory;
      ASSERT_GE(stats.bytes, reserved);
    }
    open.clear();
    evicted += cache.stats().evicted;
    cache.SetMemory(0);
    ASSERT_EQ(cache.stats().bytes, 0u);
  }
  EXPECT_GT(hits, seeds * 20);
  EXPECT_GT(evicted, seeds * 20);
}

}  // namespace
}  // namespace polysketch
