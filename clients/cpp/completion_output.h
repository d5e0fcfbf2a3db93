// The output of a completion, on stdout: text as it arrives, one JSON object at the end, or one
// JSON object for each response.
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
  // Prints what has arrived. The last call if the user cancelled the RPC.
  virtual void Cancel() = 0;
  // The last call if the RPC failed.
  virtual void Abort() {}
};

// Each prints the responses to `request`, without the prompt.
std::unique_ptr<CompletionOutput> NewJsonOutput(const v1::CompleteRequest& request);
std::unique_ptr<CompletionOutput> NewJsonStreamOutput(const v1::CompleteRequest& request);
// Prints text, or token ids if `print_ids`; then, on a terminal, a line of statistics on stderr.
// Prints a resume token on stderr in any case.
std::unique_ptr<CompletionOutput> NewTextOutput(bool print_ids);

}  // namespace polysketch
