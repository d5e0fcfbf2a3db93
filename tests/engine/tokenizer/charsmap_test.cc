#include "engine/tokenizer/charsmap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace polysketch {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kLeaf = 0x100;
constexpr uint32_t kValue = 0x80000000;
constexpr uint32_t kTrieUnits = 512;

// A unit at `place` whose children begin at `base`.
uint32_t Node(uint32_t place, uint32_t base, uint32_t label, uint32_t leaf = 0) {
  return (place ^ base) << 10 | leaf | label;
}

// "A" becomes "x" and "AB" becomes "yz". The children of the root begin at 0, those of "A" at 256
// and those of "AB" at 128.
struct Rules {
  std::vector<uint32_t> units = std::vector<uint32_t>(kTrieUnits);
  std::string replacements = std::string("x\0yz\0", 5);

  Rules() {
    units['A'] = Node('A', 256, 'A', kLeaf);
    units[256] = kValue | 0;
    units[256 ^ 'B'] = Node(256 ^ 'B', 128, 'B', kLeaf);
    units[128] = kValue | 2;
  }
  std::string Bytes() const {
    std::string out;
    const auto append = [&out](uint32_t value) {
      for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
    };
    append(static_cast<uint32_t>(4 * units.size()));
    for (const uint32_t unit : units) append(unit);
    return out + replacements;
  }
};

std::string ErrorOf(const std::string& bytes) { return CheckCharsmap(bytes).message(); }

TEST(CharsmapTest, RulesWithinTheirBytesAreFine) {
  EXPECT_EQ(ErrorOf(""), "");
  EXPECT_EQ(ErrorOf(Rules().Bytes()), "");
}

TEST(CharsmapTest, TheTrieAndTheReplacementsAreThere) {
  const std::string bytes = Rules().Bytes();
  EXPECT_THAT(ErrorOf(bytes.substr(0, 3)), HasSubstr("expected 4 bytes or more, found 3"));
  EXPECT_THAT(ErrorOf(bytes.substr(0, 4)), HasSubstr("found a trie of 2048 bytes"));
  EXPECT_THAT(ErrorOf(bytes.substr(0, 4 + 2048)), HasSubstr("found a trie of 2048 bytes"));
  EXPECT_THAT(ErrorOf(bytes.substr(0, bytes.size() - 1)), HasSubstr("a zero at the end"));
  EXPECT_THAT(ErrorOf(std::string(4, '\0') + bytes.substr(4)), HasSubstr("a trie of 0 bytes"));
}

TEST(CharsmapTest, AUnitOutsideTheTrieIsRefused) {
  Rules rules;
  rules.units[256 ^ 'B'] = Node(256 ^ 'B', 512, 'B');
  EXPECT_THAT(ErrorOf(rules.Bytes()), HasSubstr("expected children below 512, found 767"));
  // Bit 9 scales the distance by 256.
  rules.units[256 ^ 'B'] = 1 << 10 | 0x200 | 'B';
  EXPECT_EQ(ErrorOf(rules.Bytes()), "") << "256 ^ 256 ^ 'B' is in the first block";
  rules.units[256 ^ 'B'] = 3 << 10 | 0x200 | 'B';
  EXPECT_THAT(ErrorOf(rules.Bytes()), HasSubstr("expected children below 512"));
  rules = Rules();
  rules.units.resize(256);
  EXPECT_THAT(ErrorOf(rules.Bytes()), HasSubstr("expected children below 256, found 511"));
}

TEST(CharsmapTest, AReplacementOutsideTheRestIsRefused) {
  Rules rules;
  rules.units[128] = kValue | 5;
  EXPECT_THAT(ErrorOf(rules.Bytes()), HasSubstr("expected a value below 5, found 5"));
}

TEST(CharsmapTest, AUnitThatNoTextReachesMayHoldAnything) {
  Rules rules;
  rules.units[256 ^ 'C'] = ~uint32_t{0};
  EXPECT_EQ(ErrorOf(rules.Bytes()), "");
}

// SentencePiece keeps 32 rules of a position and reads as many as it finds.
TEST(CharsmapTest, RulesWithoutEndAreRefused) {
  Rules rules;
  rules.units['A'] = Node('A', 0, 'A', kLeaf);  // "A" is its own child
  rules.units[0] = 0;                           // its value, and the root
  EXPECT_THAT(ErrorOf(rules.Bytes()), HasSubstr("expected at most 32 rules"));
}

}  // namespace
}  // namespace polysketch
