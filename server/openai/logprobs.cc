#include "server/openai/logprobs.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/utf8.h"
#include "server/http/json_text.h"

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

std::optional<IncrementalDecoder> TextDecoder(const Tokenizer* tokenizer,
                                              const v1::CompleteRequest& request) {
  if (tokenizer == nullptr) return std::nullopt;
  const auto& ids = request.prompt().tokens().ids();
  const bool begins = request.session().empty() && request.resume_token().empty();
  const bool skip_control = !request.has_skip_special_tokens() || request.skip_special_tokens();
  const auto is_text = [&](int32_t id) {
    return id >= 0 && id < tokenizer->vocab_size() && !tokenizer->IsControl(id);
  };
  if (request.echo()) return IncrementalDecoder(tokenizer, !begins, skip_control);
  const bool continued =
      !begins || !request.prompt().text().empty() || std::any_of(ids.begin(), ids.end(), is_text);
  IncrementalDecoder decoder(tokenizer, continued, skip_control);
  // The prompt may end inside a character, of which the last three tokens of text have bytes.
  std::vector<int32_t> tail;
  for (auto id = ids.rbegin(); id != ids.rend() && tail.size() < 3; ++id)
    if (is_text(*id)) tail.push_back(*id);
  for (auto id = tail.rbegin(); id != tail.rend(); ++id) decoder.Append(*id);
  return decoder;
}

void AppendPromptLogprobs(const v1::Delta& delta, int alternatives, const Tokenizer* tokenizer,
                          std::string* elements) {
  for (int i = 0; i < delta.tokens_size(); ++i) {
    if (!elements->empty()) *elements += ',';
    const v1::TokenLogprob& scored = delta.logprobs(i);
    if (!scored.has_logprob()) {
      *elements += "null";
      continue;
    }
    Json json = Json::object();
    const auto add = [&](int32_t token, float logprob, int32_t rank) {
      json.emplace(StrCat(token), Json{{"logprob", logprob},
                                       {"rank", rank},
                                       {"decoded_token", TokenText(tokenizer, token)}});
    };
    add(delta.tokens(i), scored.logprob(), scored.rank());
    for (int rank = 1; rank <= std::min(alternatives, scored.top_size()); ++rank)
      add(scored.top(rank - 1).token(), scored.top(rank - 1).logprob(), rank);
    *elements += JsonText(json);
  }
}

void Logprobs::Add(const v1::Delta& delta) {
  for (int i = 0; i < delta.tokens_size(); ++i) {
    const int32_t token = delta.tokens(i);
    int64_t offset = offset_;
    if (decoder_.has_value()) {
      // Bytes that the token does not continue become U+FFFD before it.
      const std::string& pending = decoder_->Save().pending;
      const std::string_view bytes = tokenizer_->PieceBytes(token);
      if (!pending.empty() && !bytes.empty() &&
          DecodeUtf8(StrCat(pending, bytes)).kind == Utf8Char::Kind::kInvalid)
        ++offset;
      offset_ += Characters(decoder_->Append(token));
    }
    entries_.push_back({token, offset, delta.logprobs(i)});
    auto* const top = entries_.back().logprob.mutable_top();
    if (top->size() > alternatives_)
      top->DeleteSubrange(alternatives_, top->size() - alternatives_);
  }
}

Json Logprobs::TakeForCompletion() {
  Json tokens = Json::array(), logprobs = Json::array();
  Json tops = Json::array(), offsets = Json::array();
  for (const Entry& entry : std::exchange(entries_, {})) {
    const std::string text = Text(entry.token);
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
      top.emplace(Text(alternative.token()), alternative.logprob());
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
  json["token"] = Text(token);
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
