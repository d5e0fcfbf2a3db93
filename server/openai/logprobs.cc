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
    const int32_t token = delta.tokens(i);
    entries_.push_back({token, offset_, delta.logprobs(i)});
    if (tokenizer_ == nullptr || tokenizer_->IsControl(token)) continue;
    const std::string text = TokenText(tokenizer_, token);
    offset_ += Characters(text);
    const bool strips = delta.echoed() && tokenizer_->StripsLeadingSpace();
    if (std::exchange(at_start_, false) && strips && text.starts_with(' ')) --offset_;
  }
}

Json Logprobs::TakeForCompletion() {
  Json tokens = Json::array(), logprobs = Json::array();
  Json tops = Json::array(), offsets = Json::array();
  for (const Entry& entry : std::exchange(entries_, {})) {
    const std::string text = TokenText(tokenizer_, entry.token);
    tokens.push_back(text);
    offsets.push_back(entry.offset);
    if (!entry.logprob.has_logprob()) {  // the first token of a sequence
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(entry.logprob.logprob());
    Json top = Json::object();
    for (const v1::Alternative& alternative : entry.logprob.top())
      top.emplace(TokenText(tokenizer_, alternative.token()), alternative.logprob());
    top.emplace(text, entry.logprob.logprob());
    tops.push_back(std::move(top));
  }
  Json json;
  json["tokens"] = std::move(tokens);
  json["token_logprobs"] = std::move(logprobs);
  json["top_logprobs"] = std::move(tops);
  json["text_offset"] = std::move(offsets);
  return json;
}

Json Logprobs::ChatToken(int32_t token, float logprob) const {
  Json json;
  json["token"] = TokenText(tokenizer_, token);
  json["logprob"] = logprob;
  json["bytes"] = Json::array();
  if (tokenizer_ == nullptr) return json;
  for (const char byte : tokenizer_->PieceBytes(token))
    json["bytes"].push_back(static_cast<unsigned char>(byte));
  return json;
}

Json Logprobs::TakeForChat() {
  Json content = Json::array();
  for (const Entry& entry : std::exchange(entries_, {})) {
    Json json = ChatToken(entry.token, entry.logprob.logprob());
    json["top_logprobs"] = Json::array();
    for (const v1::Alternative& alternative : entry.logprob.top())
      json["top_logprobs"].push_back(ChatToken(alternative.token(), alternative.logprob()));
    content.push_back(std::move(json));
  }
  Json json;
  json["content"] = std::move(content);
  json["refusal"] = nullptr;
  return json;
}

}  // namespace polysketch
