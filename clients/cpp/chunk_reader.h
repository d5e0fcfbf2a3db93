// A long input as the messages that carry it.
#pragma once

#include <string>
#include <utility>

#include "base/status.h"
#include "clients/cpp/input.h"

namespace polysketch {

class ChunkReader {
 public:
  // file: null if the input is --prompt TEXT, which goes in one chunk. Chunks have so many ids, or
  // four times as many bytes of text: a piece of English has about four, so that both are about the
  // same work.
  ChunkReader(const InputOptions& input, InputFile* file, size_t chunk_tokens)
      : input_(input), file_(file), chunk_tokens_(chunk_tokens), text_(file), tokens_(file) {}

  // Fills in text or tokens of a message that has both; false at the end.
  template <typename Request>
  Result<bool> Next(Request* request) {
    if (file_ == nullptr) {
      if (std::exchange(done_, true)) return false;
      request->set_text(*input_.text);
      return true;
    }
    if (input_.token_file) {
      PS_ASSIGN_OR_RETURN(const auto ids, tokens_.Read(chunk_tokens_));
      request->mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
      return !ids.empty();
    }
    PS_ASSIGN_OR_RETURN(std::string text, text_.Read(4 * chunk_tokens_));
    const bool more = !text.empty();
    request->set_text(std::move(text));
    return more;
  }

 private:
  const InputOptions& input_;
  InputFile* const file_;
  const size_t chunk_tokens_;
  TextReader text_;
  TokenReader tokens_;
  bool done_ = false;
};

}  // namespace polysketch
