// Token ids of an input that arrives in chunks (Prompt, CompleteStreamRequest, ScoreRequest,
// AppendRequest).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/convert/convert.h"

namespace polysketch {

// All chunks are text, or all are token ids. The ids do not depend on how a text is cut. Used by
// one thread at a time.
class ChunkTokenizer {
 public:
  // Holds memory for ids before it is taken.
  using Hold = std::function<Status(int64_t bytes)>;
  // `hold` null: nothing is counted.
  explicit ChunkTokenizer(Hold hold = nullptr) : hold_(std::move(hold)) {}

  // Appends the ids of the chunk to `tokens`; before the ids of the first text chunk, BOS if the
  // rules require it. `Message` has a oneof with text and tokens. A chunk without either appends
  // nothing. `continued`: other tokens precede the input, so that it gets no BOS.
  // INVALID_ARGUMENT and FAILED_PRECONDITION name the field.
  template <typename Message>
  Status Append(const Message& chunk, const RequestRules& rules, bool continued,
                std::vector<int32_t>* tokens) {
    if (chunk.has_tokens()) return AppendTokens(chunk.tokens(), rules, tokens);
    return chunk.has_text() ? AppendText(chunk.text(), rules, continued, tokens) : Status();
  }
  // Appends the ids that the end of the input makes certain.
  Status Finish(std::vector<int32_t>* tokens);
  // Whether a chunk with an input arrived, even an empty one.
  bool started() const { return encoder_ != nullptr || has_tokens_; }

 private:
  Status AppendTokens(const v1::TokenIds& ids, const RequestRules& rules,
                      std::vector<int32_t>* tokens);
  // Makes room for ids in `tokens`, and holds its memory.
  Status Reserve(size_t more, std::vector<int32_t>* tokens);
  Status AddEncoded(const Result<std::vector<int32_t>>& encoded, std::vector<int32_t>* tokens);
  Status AppendText(std::string_view text, const RequestRules& rules, bool continued,
                    std::vector<int32_t>* tokens);

  const Hold hold_;
  int64_t held_ = 0;  // bytes
  bool has_tokens_ = false;
  std::unique_ptr<IncrementalEncoder> encoder_;  // of text
};

}  // namespace polysketch
