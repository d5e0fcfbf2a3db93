#include "engine/sampler/token_rules.h"

#include <algorithm>
#include <set>
#include <vector>

#include "engine/sampler/sampler.h"
#include "gtest/gtest.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;
using Tokens = std::vector<int32_t>;
using Ids = std::set<int32_t>;

struct Case {
  SamplingParams params;
  int vocab = 0;
  int64_t min_tokens = 0;
  Tokens ends;
  Tokens output;
};

Tokens SomeIds(Random* random, int64_t count, int vocab) {
  Tokens ids;
  for (; count > 0; --count) ids.push_back(static_cast<int32_t>(random->Int(0, vocab - 1)));
  return ids;
}

Case RandomCase(Random* random) {
  Case one;
  one.vocab = static_cast<int>(random->Int(1, 80));
  const int near = static_cast<int>(random->Int(1, one.vocab));
  if (random->Uniform() < 0.5)
    one.params.allowed_token_ids = SomeIds(random, random->Int(1, one.vocab), one.vocab);
  for (int64_t words = random->Uniform() < 0.7 ? random->Int(1, 30) : 0; words > 0; --words)
    one.params.bad_words.push_back(SomeIds(random, random->Int(1, 3), std::min(near, 3)));
  if (random->Uniform() < 0.5) {
    one.min_tokens = random->Int(0, 8);
    one.ends = SomeIds(random, random->Int(0, 3), one.vocab);
  }
  one.output = SomeIds(random, random->Int(0, 8), std::min(near, 3));
  return one;
}

// The rules in their order, with sets. One that would leave nothing does not hold.
Ids Oracle(const Case& one, const Ids& grammar) {
  Ids left = grammar;
  const auto narrow = [&](const auto& keeps) {
    Ids next;
    for (const int32_t id : left)
      if (keeps(id)) next.insert(id);
    if (!next.empty()) left = next;
  };
  const Ids allowed(one.params.allowed_token_ids.begin(), one.params.allowed_token_ids.end());
  if (!allowed.empty()) narrow([&](int32_t id) { return allowed.contains(id); });
  narrow([&](int32_t id) {
    Tokens after = one.output;
    after.push_back(id);
    return std::ranges::none_of(one.params.bad_words, [&](const Tokens& word) {
      return word.size() <= after.size() && std::equal(word.rbegin(), word.rend(), after.rbegin());
    });
  });
  if (std::ssize(one.output) < one.min_tokens)
    narrow([&](int32_t id) { return std::ranges::find(one.ends, id) == one.ends.end(); });
  return left;
}

TEST(TokenRulesTest, MasksAreThoseOfSets) {
  Random random(1);
  for (int trial = 0; trial < testing::Count(20000, 500000); ++trial) {
    const Case one = RandomCase(&random);
    TokenRules rules(one.params, one.vocab);
    rules.SetMinimum(one.min_tokens, one.ends);
    for (const int32_t token : one.output) rules.Accept(token);

    Ids grammar;
    std::vector<uint32_t> mask;
    if (random.Uniform() < 0.5) {
      mask.assign(static_cast<size_t>(one.vocab + 31) / 32, 0);
      mask.back() = ~uint32_t{0} << (one.vocab % 32);  // beyond the vocabulary
      if (one.vocab % 32 == 0) mask.back() = 0;
      for (const int32_t id : SomeIds(&random, random.Int(1, 20), one.vocab)) {
        grammar.insert(id);
        mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
      }
    } else {
      for (int32_t id = 0; id < one.vocab; ++id) grammar.insert(id);
    }
    const Ids expected = Oracle(one, grammar);
    const int64_t index = std::ssize(one.output);
    if (!rules.Bind(index)) {
      ASSERT_EQ(expected, grammar) << "trial " << trial;
      continue;
    }
    std::vector<uint32_t> words;
    const std::span<const uint32_t> got = rules.Mask(index, mask, &words);
    Ids ids;
    for (size_t bit = 0; bit < got.size() * 32; ++bit)
      if ((got[bit / 32] >> (bit % 32) & 1) != 0) ids.insert(static_cast<int32_t>(bit));
    ASSERT_EQ(ids, expected) << "trial " << trial;

    // From what another process gets.
    TokenRules again(one.params, one.vocab);
    again.SetMinimum(one.min_tokens, one.ends);
    for (const int32_t token : Tokens(rules.recent().begin(), rules.recent().end()))
      again.Accept(token);
    std::vector<uint32_t> other;
    ASSERT_TRUE(std::ranges::equal(again.Mask(index, mask, &other), got)) << "trial " << trial;
  }
}

// Each token of an output is one that the rules allow; a device is asked only where none binds.
TEST(TokenRulesTest, OutputsKeepTheRules) {
  Random random(2);
  int bound = 0;
  for (int trial = 0; trial < testing::Count(2000, 50000); ++trial) {
    Case one = RandomCase(&random);
    one.output.clear();
    one.params.temperature = random.Uniform() < 0.3 ? 0.0f : 1.5f;
    if (random.Uniform() < 0.3) one.params.top_k = 2;
    if (random.Uniform() < 0.3) one.params.top_p = 0.7f;
    Ids all;
    for (int32_t id = 0; id < one.vocab; ++id) all.insert(id);
    Sampler sampler(one.params, static_cast<uint64_t>(trial), one.vocab, {});
    sampler.SetMinimum(one.min_tokens, one.ends);
    SamplerScratch scratch;
    for (int i = 0; i < 12; ++i) {
      const Ids allowed = Oracle(one, all);
      SampleQuery query;
      if (allowed.size() < all.size()) {
        ++bound;
        EXPECT_FALSE(sampler.MakeQuery(0, &query));
      }
      const auto token =
          sampler.Sample(random.Normals(static_cast<size_t>(one.vocab)), {}, &scratch);
      ASSERT_TRUE(token.ok());
      ASSERT_TRUE(allowed.contains(*token)) << "trial " << trial << " token " << i;
      one.output.push_back(*token);
    }
  }
  EXPECT_GT(bound, 2400);  // a tenth of the tokens of 2,000 trials
}

}  // namespace
}  // namespace polysketch
