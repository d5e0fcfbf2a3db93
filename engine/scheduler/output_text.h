// The text of a completion: decodes tokens to whole characters, and holds characters back while
// they may be part of a stop string.
//
// Used by the engine thread only.
#pragma once

#include <optional>
#include <string>

#include "engine/sampler/stop_matcher.h"
#include "engine/snapshot/snapshot.h"
#include "engine/tokenizer/tokenizer.h"

namespace polysketch {

class OutputText {
 public:
  // `tokenizer` null: all text is empty.
  OutputText(const Tokenizer* tokenizer, const GenerateParams& params)
      : tokenizer_(tokenizer),
        skip_control_(params.skip_special_tokens),
        matcher_(params.stop, params.include_stop_in_output) {}

  // Starts a text that follows the tokens of `history`.
  void Start(const TokenHistory& history);
  // Returns the text of a prompt token. Stop strings are not matched in it.
  std::string AppendEcho(int32_t token);
  // Returns the text that became certain with a sampled token. stopped() is true if a stop string
  // has matched. `may_end`: whether one may match in this text.
  std::string Append(int32_t token, bool may_end = true);
  // Returns the rest of the text.
  std::string Finish();
  bool stopped() const { return !matched().empty(); }
  // The stop string that matched; empty before.
  const std::string& matched() const { return matcher_.matched(); }

  void Save(Generation* generation) const;
  void Restore(const Generation& generation);

 private:
  std::string Match(const std::string& text, bool may_end);

  const Tokenizer* const tokenizer_;
  const bool skip_control_;
  StopMatcher matcher_;
  std::optional<IncrementalDecoder> decoder_;  // unset without a tokenizer
};

}  // namespace polysketch
