// The form of an answer that is blocks one after the other: reasoning, text and calls of tools.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/chat/tool_parser.h"
#include "server/openai/answer_form.h"

namespace polysketch {

struct AnswerBlock {
  enum class Kind { kText, kReasoning, kCall };
  Kind kind = Kind::kText;
  std::string call_id = {};
  std::string name = {};  // of the tool
  std::string text = {};  // arguments of the call
  std::string_view status =
      "in_progress";  // of the last block alone; then "completed" or "incomplete"
};

// For an endpoint with one choice and without log-probabilities.
class BlockForm : public AnswerForm {
 public:
  int64_t KeptBytes() const override {
    return parser_ == nullptr ? 0 : static_cast<int64_t>(parser_->held_bytes() + call_.text.size());
  }
  std::string Piece(size_t index, Answer* answer) final { return Take(&answer->choices[index]); }

 protected:
  using Kind = AnswerBlock::Kind;

  // `call_prefix`: of the ids of calls. `repeats`: the end of a stream repeats the blocks, which
  // are kept, and says which call is none. Without it nothing takes a block back: a call is one
  // when it is complete.
  BlockForm(const CompletionOptions& options, AnswerHeader header, std::string_view call_prefix,
            bool repeats);

  // Events of a stream: the last block begins, has got `text`, has ended.
  virtual std::string Began() = 0;
  virtual std::string Grew(const std::string& text) = 0;
  virtual std::string Ended() = 0;

  // Each returns the events, of a stream.
  // Adds what has come to the blocks.
  std::string Take(AnswerChoice* choice);
  std::string BeginBlock(AnswerBlock block);
  // Ends the last block, unless it has ended.
  std::string EndBlock(std::string_view status);
  void SetStreams() { streams_ = true; }

  const AnswerHeader& header() const { return header_; }
  // Of a stream whose end does not repeat them: the last one, without its text.
  const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  int64_t index() const { return begun_ - 1; }  // of the last block
  int calls() const { return calls_; }          // that are complete
  bool has_tools() const { return parser_ != nullptr; }

 private:
  bool holds_calls() const { return !streams_ || !repeats_; }
  std::string WholeCall(AnswerBlock call);
  std::string AddText(Kind kind, const std::string& text);
  std::string Add(const std::string& text);
  bool open() const { return !blocks_.empty() && blocks_.back().status == "in_progress"; }

  const std::optional<ToolParsing> tools_;
  const AnswerHeader header_;
  const std::string_view call_prefix_;  // in static storage
  const bool repeats_;
  const std::unique_ptr<ToolParser> parser_;  // null without tools
  bool streams_ = false;
  std::vector<AnswerBlock> blocks_;
  AnswerBlock call_;  // that is held until its end
  int64_t begun_ = 0;
  int calls_ = 0;
};

}  // namespace polysketch
