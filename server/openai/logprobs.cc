#include "server/openai/logprobs.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/utf8.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

int64_t Characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

std::string TokenText(const Tokenizer* tokenizer, int32_t id) {
  if (tokenizer == nullptr) return StrCat("token_id:", id);
  if (tokenizer->IsControl(id)) return std::string(tokenizer->Piece(id));
  const std::string_view bytes = tokenizer->PieceBytes(id);
  if (ValidUtf8Prefix(bytes) == bytes.size()) return std::string(bytes);
  std::string text = "bytes:";
  for (const char byte : bytes) {
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned char>(byte));
    text += escaped;
  }
  return text;
}

void Logprobs::Add(const v1::Delta& delta) {
  for (int i = 0; i < delta.tokens_size(); ++i) {
    const v1::TokenLogprob& logprob = delta.logprobs(i);
    const std::string text = TokenText(tokenizer_, delta.tokens(i));
    tokens_.push_back(text);
    text_offset_.push_back(offset_);
    if (tokenizer_ != nullptr && !tokenizer_->IsControl(delta.tokens(i))) {
      offset_ += Characters(text);
      const bool strips = delta.echoed() && tokenizer_->StripsLeadingSpace();
      if (std::exchange(at_start_, false) && strips && text.starts_with(' ')) --offset_;
    }
    if (!logprob.has_logprob()) {  // the first token of a sequence
      token_logprobs_.push_back(nullptr);
      top_logprobs_.push_back(nullptr);
      continue;
    }
    token_logprobs_.push_back(logprob.logprob());
    Json top = Json::object();
    for (const v1::Alternative& alternative : logprob.top())
      top.emplace(TokenText(tokenizer_, alternative.token()), alternative.logprob());
    top.emplace(text, logprob.logprob());
    top_logprobs_.push_back(std::move(top));
  }
}

Json Logprobs::Take() {
  Json json;
  json["tokens"] = std::exchange(tokens_, Json::array());
  json["token_logprobs"] = std::exchange(token_logprobs_, Json::array());
  json["top_logprobs"] = std::exchange(top_logprobs_, Json::array());
  json["text_offset"] = std::exchange(text_offset_, Json::array());
  return json;
}

}  // namespace polysketch
