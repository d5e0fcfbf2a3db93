#include "engine/sampler/stop_matcher.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/environment.h"
#include "tests/testing/random.h"

namespace polysketch {
namespace {

using testing::Random;

struct Outcome {
  std::string text;
  std::string matched;
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& o) {
  return out << '"' << o.text << "\" matched \"" << o.matched << '"';
}

// By search in the whole text: the match that ends first, of these the longest.
Outcome Oracle(const std::string& text, const std::vector<std::string>& stops, bool include) {
  size_t best_end = std::string::npos;
  std::string best;
  for (const std::string& stop : stops) {
    const size_t at = text.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < best_end || (end == best_end && stop.size() > best.size())) {
      best_end = end;
      best = stop;
    }
  }
  if (best_end == std::string::npos) return {text, ""};
  return {text.substr(0, include ? best_end : best_end - best.size()), best};
}

// Feeds pieces; checks after each that what is out can never turn out to be part of a match, and
// that nothing is held back without need.
Outcome Feed(const std::vector<std::string>& pieces, const std::vector<std::string>& stops,
             bool include) {
  StopMatcher matcher(stops, include);
  std::string out;
  std::string fed;
  for (const std::string& piece : pieces) {
    fed += piece;
    if (matcher.Append(piece, &out)) break;
    const std::string held = fed.substr(out.size());
    EXPECT_TRUE(fed.starts_with(out));
    size_t longest = 0;  // suffix of fed that is a proper prefix of a stop
    for (const std::string& stop : stops) {
      for (size_t n = 1; n < stop.size() && n <= fed.size(); ++n) {
        if (fed.ends_with(stop.substr(0, n))) longest = std::max(longest, n);
      }
    }
    EXPECT_EQ(held.size(), longest) << "after \"" << fed << '"';
  }
  out += matcher.Finish();
  EXPECT_EQ(matcher.Finish(), "");
  return {out, matcher.matched()};
}

// Every text of two letters up to a length, every pair of stops from a set, every split.
TEST(StopMatcherTest, AllSmallCases) {
  const std::vector<std::string> patterns = {"a", "ab", "ba", "aab", "aba", "abab", "bbb"};
  const int longest = testing::Count(8, 11);
  for (size_t first = 0; first < patterns.size(); ++first) {
    for (size_t second = first; second < patterns.size(); ++second) {
      const std::vector<std::string> stops = {patterns[first], patterns[second]};
      for (int length = 1; length <= longest; ++length) {
        for (int bits = 0; bits < 1 << length; ++bits) {
          std::string text;
          for (int i = 0; i < length; ++i) text += bits >> i & 1 ? 'b' : 'a';
          const Outcome expected = Oracle(text, stops, false);
          for (int cuts = 0; cuts<1 << (length - 1); cuts += length> 5 ? 5 : 1) {
            std::vector<std::string> pieces = {""};
            for (int i = 0; i < length; ++i) {
              pieces.back() += text[static_cast<size_t>(i)];
              if (cuts >> i & 1) pieces.emplace_back();
            }
            ASSERT_EQ(Feed(pieces, stops, false), expected) << text << " cuts " << cuts;
          }
        }
      }
    }
  }
}

TEST(StopMatcherTest, RandomCases) {
  Random random(1);
  for (int trial = 0; trial < testing::Count(20000, 500000); ++trial) {
    const auto word = [&](int64_t length) {
      std::string text;
      for (; length > 0; --length)
        text += "ab\n\xE2\x82\xAC"[random.Int(0, random.Uniform() < 0.5 ? 1 : 5)];
      return text;
    };
    std::vector<std::string> stops(static_cast<size_t>(random.Int(1, 4)));
    for (std::string& stop : stops) stop = word(random.Int(1, 6));
    const std::string text = word(random.Int(1, 60));
    std::vector<std::string> pieces;
    size_t at = 0;
    for (const int size : random.Split(static_cast<int>(text.size()))) {
      pieces.push_back(text.substr(at, static_cast<size_t>(size)));
      if (random.Uniform() < 0.2) pieces.emplace_back();
      at += static_cast<size_t>(size);
    }
    const bool include = random.Uniform() < 0.5;
    ASSERT_EQ(Feed(pieces, stops, include), Oracle(text, stops, include)) << "trial " << trial;
  }
}

// With min_tokens: stop strings that end in the first pieces do not count, those that only begin
// there do. The matcher is made again from what it holds after each piece.
TEST(StopMatcherTest, StopsThatEndEarlyDoNotCount) {
  Random random(2);
  int matched = 0;
  for (int trial = 0; trial < testing::Count(20000, 500000); ++trial) {
    std::vector<std::string> stops(static_cast<size_t>(random.Int(1, 3)));
    for (std::string& stop : stops)
      for (int64_t i = random.Int(1, 5); i > 0; --i) stop += "ab"[random.Int(0, 1)];
    const int64_t early = random.Int(0, 12);
    std::string text, out;
    Outcome expected;
    std::optional<StopMatcher> matcher(std::in_place, stops, false);
    for (int64_t i = 0; i < 20 && matcher->matched().empty(); ++i) {
      const std::string piece(1, "ab"[random.Int(0, 1)]);
      text += piece;
      for (const std::string& stop : stops) {
        if (i >= early && text.ends_with(stop) && stop.size() > expected.matched.size())
          expected = {text.substr(0, text.size() - stop.size()), stop};
      }
      EXPECT_EQ(matcher->Append(piece, &out, i >= early), !expected.matched.empty());
      if (!matcher->matched().empty()) break;
      const std::string held = matcher->held();
      EXPECT_EQ(out + held, text);
      std::string released;
      matcher.emplace(stops, false);
      EXPECT_FALSE(matcher->Append(held, &released, /*may_end=*/false));
      EXPECT_EQ(released, "");
      EXPECT_EQ(matcher->held(), held);
    }
    if (expected.matched.empty()) expected.text = text;
    out += matcher->Finish();
    ASSERT_EQ((Outcome{out, matcher->matched()}), expected) << "trial " << trial;
    matched += !expected.matched.empty();
  }
  EXPECT_GT(matched, 1000);
}

TEST(StopMatcherTest, WithoutStopsNothingIsHeld) {
  StopMatcher matcher({}, false);
  std::string out;
  EXPECT_FALSE(matcher.Append("anything", &out));
  EXPECT_EQ(out, "anything");
}

}  // namespace
}  // namespace polysketch
