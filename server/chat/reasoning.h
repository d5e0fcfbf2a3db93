// Reasoning: what a model writes between marks before its answer.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace polysketch {

struct ReasoningMarks {
  std::string_view open, close;  // static

  bool operator==(const ReasoningMarks&) const = default;
};

// <think> and </think>.
extern const ReasoningMarks kThinkMarks;

// The marks that the text of a chat template has; nullopt if it has none that the server knows.
std::optional<ReasoningMarks> DetectReasoning(std::string_view chat_template);

// Where an output begins.
enum class ReasoningStart {
  kMayBegin,  // the output may begin with the mark that opens reasoning
  kBegun,     // the prompt ends with that mark
  kOver,      // the prompt ends with the mark that closes it: the output is the answer
};
// `tail`: the end of the text of the prompt.
ReasoningStart ReasoningStartAfter(std::string_view tail, const ReasoningMarks& marks);

// Divides an output, as it arrives, into reasoning and answer. White space around the reasoning
// belongs to neither. The parts are the same however the output arrives.
class ReasoningReader {
 public:
  struct Parts {
    std::string reasoning;
    std::string answer;
  };

  // `begun`: the output begins within reasoning.
  ReasoningReader(const ReasoningMarks& marks, bool begun)
      : marks_(marks), state_(begun ? State::kReasoning : State::kBefore) {}

  Parts Take(std::string_view text);
  // What was held. The output has ended.
  Parts Finish();
  // Whether what was taken last is reasoning.
  bool reasons() const { return state_ == State::kReasoning; }

 private:
  enum class State { kBefore, kReasoning, kAfter, kAnswer };
  void TakeReasoning(char c, std::string* reasoning);

  ReasoningMarks marks_;
  State state_;
  std::string held_;    // may be a mark, or white space before one
  bool began_ = false;  // reasoning has characters other than white space
};

}  // namespace polysketch
