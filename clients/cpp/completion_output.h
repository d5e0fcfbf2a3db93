// The output of a completion, on stdout: text as it arrives, or one JSON object at the end.
#pragma once

#include <memory>

#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {

class CompletionOutput {
 public:
  virtual ~CompletionOutput() = default;
  virtual void Add(const v1::Delta& delta) = 0;
  virtual void Add(const v1::ChoiceFinish& finish) = 0;
  // Prints what is left. Last, if the call succeeded.
  virtual void Finish(const v1::Finish& finish) = 0;
  // Last, if the call failed.
  virtual void Abort() {}
};

// One JSON object. with_choices: it lists choices; also true once a response names one, since a
// resumed completion does not repeat n. with_logprobs: it has log-probabilities even if empty.
std::unique_ptr<CompletionOutput> NewJsonOutput(bool with_choices, bool with_logprobs);
// Text, or with `print_ids` token ids; then, on a terminal, a line of statistics on stderr. A resume
// token is printed on stderr in any case.
std::unique_ptr<CompletionOutput> NewTextOutput(bool print_ids);

}  // namespace polysketch
