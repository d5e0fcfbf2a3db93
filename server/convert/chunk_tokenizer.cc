#include "server/convert/chunk_tokenizer.h"

#include <algorithm>
#include <span>

#include "engine/tokenizer/encode_pace.h"
#include "server/convert/status_map.h"

namespace polysketch {
namespace {

Status MixedKinds() {
  return InvalidArgument("input: expected chunks of one kind, found text and tokens");
}

}  // namespace

Status ChunkTokenizer::Reserve(size_t more, std::vector<int32_t>* tokens) {
  if (tokens->size() + more <= tokens->capacity()) return Status();
  const size_t capacity = tokens->size() + std::max(tokens->size(), more);
  const auto bytes = static_cast<int64_t>(capacity * sizeof(int32_t));
  if (hold_ && bytes > held_) {
    PS_RETURN_IF_ERROR(hold_(bytes - held_));
    held_ = bytes;
  }
  tokens->reserve(capacity);
  return Status();
}

Status ChunkTokenizer::AddEncoded(const Result<std::vector<int32_t>>& encoded,
                                  std::vector<int32_t>* tokens) {
  if (!encoded.ok()) return Prefixed("text: ", encoded.status());
  PS_RETURN_IF_ERROR(Reserve(encoded->size(), tokens));
  tokens->insert(tokens->end(), encoded->begin(), encoded->end());
  return Status();
}

Status ChunkTokenizer::AppendTokens(const v1::TokenIds& message, const RequestRules& rules,
                                    std::vector<int32_t>* tokens) {
  if (encoder_ != nullptr) return MixedKinds();
  const std::span<const int32_t> ids(message.ids().data(), message.ids().size());
  PS_RETURN_IF_ERROR(CheckTokenIds("tokens.ids", ids, rules.vocab_size));
  has_tokens_ = true;
  PS_RETURN_IF_ERROR(Reserve(ids.size(), tokens));
  tokens->insert(tokens->end(), ids.begin(), ids.end());
  return Status();
}

Status ChunkTokenizer::AppendText(std::string_view text, const RequestRules& rules, bool continued,
                                  std::vector<int32_t>* tokens) {
  if (has_tokens_) return MixedKinds();
  PS_RETURN_IF_ERROR(RequireTokenizer(rules, "text"));
  if (encoder_ == nullptr) {
    encoder_ = std::make_unique<IncrementalEncoder>(
        rules.tokenizer, continued ? TextPlace::kContinued : TextPlace::kStart);
    if (rules.add_bos && !continued) tokens->push_back(rules.bos_id);
  }
  // In slices: the encoder holds one of them, and its ids, beside `text` and `tokens`.
  while (!text.empty()) {
    const std::string_view slice = text.substr(0, EncodePace::kBytes);
    text.remove_prefix(slice.size());
    PS_RETURN_IF_ERROR(AddEncoded(encoder_->Append(slice), tokens));
  }
  return Status();
}

Status ChunkTokenizer::Finish(std::vector<int32_t>* tokens) {
  return encoder_ == nullptr ? Status() : AddEncoded(encoder_->Finish(), tokens);
}

}  // namespace polysketch
