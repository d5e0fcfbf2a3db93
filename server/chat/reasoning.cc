#include "server/chat/reasoning.h"

#include <algorithm>
#include <utility>

namespace polysketch {
namespace {

constexpr ReasoningMarks kMarks[] = {
    {"<think>", "</think>"},                     // DeepSeek, Qwen, SmolLM
    {"[THINK]", "[/THINK]"},                     // Mistral
    {"<|START_THINKING|>", "<|END_THINKING|>"},  // Cohere
    {"<seed:think>", "</seed:think>"},           // Seed
};
constexpr size_t kMaxHeldSpace = 256;
constexpr std::string_view kWhiteSpace = " \t\r\n";

bool IsSpace(char c) { return kWhiteSpace.find(c) != std::string_view::npos; }
std::string_view WithoutSpaceAtEnd(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kWhiteSpace) + 1);
}

}  // namespace

const ReasoningMarks kThinkMarks = kMarks[0];

std::optional<ReasoningMarks> DetectReasoning(std::string_view chat_template) {
  // A template that only removes the reasoning of earlier turns has the mark that closes it alone.
  for (const ReasoningMarks& marks : kMarks) {
    if (chat_template.find(marks.close) != std::string_view::npos) return marks;
  }
  return std::nullopt;
}

ReasoningStart ReasoningStartAfter(std::string_view tail, const ReasoningMarks& marks) {
  const std::string_view text = WithoutSpaceAtEnd(tail);
  if (text.ends_with(marks.open)) return ReasoningStart::kBegun;
  return text.ends_with(marks.close) ? ReasoningStart::kOver : ReasoningStart::kMayBegin;
}

ReasoningReader::Parts ReasoningReader::Take(std::string_view text) {
  Parts parts;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    switch (state_) {
      case State::kBefore: {
        held_ += c;
        const size_t begin = std::min(held_.find_first_not_of(kWhiteSpace), held_.size());
        const std::string_view mark = std::string_view(held_).substr(begin);
        if (mark == marks_.open) {
          held_.clear();
          state_ = State::kReasoning;
        } else if (!marks_.open.starts_with(mark) || begin > kMaxHeldSpace) {
          parts.answer += std::exchange(held_, "");
          state_ = State::kAnswer;
        }
        break;
      }
      case State::kReasoning:
        TakeReasoning(c, &parts.reasoning);
        break;
      case State::kAfter:
        if (IsSpace(c)) break;
        state_ = State::kAnswer;
        [[fallthrough]];
      case State::kAnswer:
        parts.answer += text.substr(i);
        return parts;
    }
  }
  return parts;
}

// Holds white space, and a beginning of the mark after it.
void ReasoningReader::TakeReasoning(char c, std::string* reasoning) {
  if (!began_ && held_.empty() && IsSpace(c)) return;
  held_ += c;
  if (held_.ends_with(marks_.close)) {
    held_.resize(held_.size() - marks_.close.size());
    *reasoning += WithoutSpaceAtEnd(held_);
    held_.clear();
    state_ = State::kAfter;
    return;
  }
  size_t matched = std::min(held_.size(), marks_.close.size() - 1);
  while (!held_.ends_with(marks_.close.substr(0, matched))) --matched;
  const std::string_view before = std::string_view(held_).substr(0, held_.size() - matched);
  size_t keep = WithoutSpaceAtEnd(before).size();
  if (before.size() - keep > kMaxHeldSpace) keep = before.size();
  began_ = began_ || keep > 0;
  *reasoning += before.substr(0, keep);
  held_.erase(0, keep);
}

ReasoningReader::Parts ReasoningReader::Finish() {
  Parts parts;
  if (state_ == State::kBefore) parts.answer = held_;
  if (state_ == State::kReasoning) parts.reasoning = WithoutSpaceAtEnd(held_);
  held_.clear();
  return parts;
}

}  // namespace polysketch
