#include "server/chat/reasoning.h"

#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace polysketch {
namespace {

// "REASONING|ANSWER" of an output that arrives in pieces of at most `size` bytes.
std::string Divided(const std::string& output, bool begun, size_t size) {
  ReasoningReader reader(kThinkMarks, begun);
  std::string reasoning, answer;
  const auto add = [&](const ReasoningReader::Parts& parts) {
    // Nothing follows the answer.
    EXPECT_TRUE(answer.empty() || parts.reasoning.empty()) << output;
    reasoning += parts.reasoning;
    answer += parts.answer;
  };
  for (size_t at = 0; at < output.size(); at += size) add(reader.Take(output.substr(at, size)));
  add(reader.Finish());
  return reasoning + "|" + answer;
}

TEST(Reasoning, IsDividedFromTheAnswer) {
  struct Case {
    std::string output;
    bool begun;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"<think>\nHm. \n</think>\n\nYes.\n", false, "Hm.|Yes.\n"},
      {"\n<think>a</think>b<think>c</think>", false, "a|b<think>c</think>"},
      {"Yes <think>no</think>", false, "|Yes <think>no</think>"},
      {"<thin king", false, "|<thin king"},
      {"<thi", false, "|<thi"},
      {"  \n", false, "|  \n"},
      {"", false, "|"},
      {"<think>", false, "|"},
      {"<think></think>x", false, "|x"},
      {"<think> a < b </thin </think </think>x", false, "a < b </thin </think|x"},
      {"<think>cut </thi", false, "cut </thi|"},
      {"<think>cut  \n", false, "cut|"},
      {"Hm.\n\nSo\n</think>\n\nYes", true, "Hm.\n\nSo|Yes"},
      {"Hm.", true, "Hm.|"},
      {"</think>Yes", true, "|Yes"},
      {"<</think>Yes", true, "<|Yes"},
      {std::string(600, ' ') + "<think>a", false, "|" + std::string(600, ' ') + "<think>a"},
      {"a" + std::string(600, '\n') + "b</think>", true, "a" + std::string(600, '\n') + "b|"},
  };
  for (const Case& one : cases) {
    for (const size_t size : {size_t{1}, size_t{2}, size_t{5}, size_t{10'000}})
      EXPECT_EQ(Divided(one.output, one.begun, size), one.expected) << one.output << size;
  }
}

// Against the division of the whole output at once.
TEST(Reasoning, RandomOutputs) {
  std::mt19937 random(1);
  const std::vector<std::string> parts = {"<think>", "</think>", " ",  "\n",
                                          "a",       "<",        "</", "think>"};
  for (int i = 0; i < 3000; ++i) {
    std::string output;
    for (size_t n = random() % 8; n > 0; --n) output += parts[random() % parts.size()];
    const bool begun = random() % 2 == 0;
    const auto strip = [](std::string text, bool left, bool right) {
      while (left && !text.empty() && (text[0] == ' ' || text[0] == '\n')) text.erase(0, 1);
      while (right && !text.empty() && (text.back() == ' ' || text.back() == '\n')) text.pop_back();
      return text;
    };
    const std::string stripped = strip(output, true, false);
    std::string expected = "|" + output;
    if (begun || stripped.starts_with("<think>")) {
      const std::string rest = begun ? output : stripped.substr(7);
      const size_t end = rest.find("</think>");
      expected = strip(rest.substr(0, end), true, true) + "|";
      if (end != std::string::npos) expected += strip(rest.substr(end + 8), true, false);
    }
    EXPECT_EQ(Divided(output, begun, 1 + random() % 4), expected) << output << begun;
  }
}

TEST(Reasoning, MarksAndBeginning) {
  EXPECT_EQ(DetectReasoning("{% if '</think>' in content %}"), kThinkMarks);
  EXPECT_EQ(DetectReasoning("[THINK]x[/THINK]")->open, "[THINK]");
  EXPECT_FALSE(DetectReasoning("{{ messages }}").has_value());
  EXPECT_EQ(ReasoningStartAfter("<|im_start|>assistant\n<think>\n", kThinkMarks),
            ReasoningStart::kBegun);
  EXPECT_EQ(ReasoningStartAfter("<think>\n\n</think>\n\n", kThinkMarks), ReasoningStart::kOver);
  EXPECT_EQ(ReasoningStartAfter("<|im_start|>assistant\n", kThinkMarks), ReasoningStart::kMayBegin);
  EXPECT_EQ(ReasoningStartAfter("", kThinkMarks), ReasoningStart::kMayBegin);
}

}  // namespace
}  // namespace polysketch
