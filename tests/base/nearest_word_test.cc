#include "base/nearest_word.h"

#include <gtest/gtest.h>

namespace polysketch {
namespace {

TEST(NearestWord, TheOneOfFewestEdits) {
  const std::vector<std::string_view> known = {"complete", "chat", "batch",
                                               "score",    "n",    "session"};
  const std::pair<const char*, const char*> cases[] = {
      {"comlpete", "complete"},  // neighbours in the other order
      {"complet", "complete"},
      {"compleete", "complete"},
      {"compl", ""},
      {"chta", "chat"},
      {"cat", "chat"},
      {"bach", "batch"},
      {"scroe", "score"},
      {"m", ""},  // short words are near to many
      {"complete", "complete"},
      {"", ""},
  };
  for (const auto& [word, nearest] : cases) EXPECT_EQ(NearestWord(word, known), nearest) << word;
  EXPECT_EQ(NearestWord("sesson", {"sessions", "session"}), "session");
  EXPECT_EQ(NearestWord("abcx", {"abcz", "abcy"}), "abcy") << "of equals the first";
  const std::string longest(41, 'a');
  EXPECT_EQ(NearestWord(longest, {longest}), "");
  EXPECT_EQ(NearestWord("a", {}), "");
}

}  // namespace
}  // namespace polysketch
