#include "server/convert/chunk_tokenizer.h"

#include <span>

#include "server/convert/status_map.h"

namespace polysketch {
namespace {

Status MixedKinds() {
  return InvalidArgument("input: expected chunks of one kind, found text and tokens");
}

Status AddEncoded(const Result<std::vector<int32_t>>& encoded, std::vector<int32_t>* tokens) {
  if (!encoded.ok()) return Prefixed("text: ", encoded.status());
  tokens->insert(tokens->end(), encoded->begin(), encoded->end());
  return Status();
}

}  // namespace

Status ChunkTokenizer::AppendTokens(const v1::TokenIds& message, const RequestRules& rules,
                                    std::vector<int32_t>* tokens) {
  if (encoder_ != nullptr) return MixedKinds();
  const std::span<const int32_t> ids(message.ids().data(), message.ids().size());
  PS_RETURN_IF_ERROR(CheckTokenIds("tokens.ids", ids, rules.vocab_size));
  has_tokens_ = true;
  tokens->insert(tokens->end(), ids.begin(), ids.end());
  return Status();
}

Status ChunkTokenizer::AppendText(const std::string& text, const RequestRules& rules,
                                  bool continued, std::vector<int32_t>* tokens) {
  if (has_tokens_) return MixedKinds();
  PS_RETURN_IF_ERROR(RequireTokenizer(rules, "text"));
  if (encoder_ == nullptr) {
    encoder_ = std::make_unique<IncrementalEncoder>(rules.tokenizer, continued);
    if (rules.add_bos && !continued) tokens->push_back(rules.bos_id);
  }
  return AddEncoded(encoder_->Append(text), tokens);
}

Status ChunkTokenizer::Finish(std::vector<int32_t>* tokens) {
  return encoder_ == nullptr ? Status() : AddEncoded(encoder_->Finish(), tokens);
}

}  // namespace polysketch
