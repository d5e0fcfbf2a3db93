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
  // Prints the rest. The last call if the RPC succeeded.
  virtual void Finish(const v1::Finish& finish) = 0;
  // The last call if the RPC failed.
  virtual void Abort() {}
};

// Prints one JSON object. with_choices: the object lists choices; it also does once a response
// names one, because a resumed completion does not repeat n. with_logprobs: the object has
// log-probabilities even if they are empty.
std::unique_ptr<CompletionOutput> NewJsonOutput(bool with_choices, bool with_logprobs);
// Prints text, or token ids if `print_ids`; then, on a terminal, a line of statistics on stderr.
// Prints a resume token on stderr in any case.
std::unique_ptr<CompletionOutput> NewTextOutput(bool print_ids);

}  // namespace polysketch
