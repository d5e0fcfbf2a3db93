#include "server/openai/logprobs.h"

#include <algorithm>
#include <cstdio>
#include <span>

#include "base/utf8.h"
#include "server/http/json_text.h"
#include "server/openai/growing_json.h"

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
    const v1::TokenLogprob& scored = delta.logprobs(i);
    if (!scored.has_logprob()) {
      AppendElements("null", elements);
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
    AppendElements(JsonText(json), elements);
  }
}

int64_t Logprobs::Add(const v1::Delta& delta) {
  const auto size = [this] {
    size_t bytes = 0;
    for (const std::string& column : columns_) bytes += column.size();
    return static_cast<int64_t>(bytes);
  };
  const int64_t before = size();
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
    form_ == Form::kChat ? AddForChat(token, delta.logprobs(i))
                         : AddForCompletion(token, offset, delta.logprobs(i));
  }
  return size() - before;
}

void Logprobs::Append(size_t column, const Json& element) {
  AppendElements(JsonText(element), &columns_[column]);
}

void Logprobs::AddForCompletion(int32_t token, int64_t offset, const v1::TokenLogprob& logprob) {
  const std::string text = Text(token);
  Json value, top;  // null of the first token of a sequence
  if (logprob.has_logprob()) {
    value = logprob.logprob();
    top = Json::object();
    for (int i = 0; i < Alternatives(logprob); ++i)
      top.emplace(Text(logprob.top(i).token()), logprob.top(i).logprob());
    top.emplace(text, logprob.logprob());
  }
  Append(0, text);
  Append(1, value);
  Append(2, top);
  Append(3, offset);
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

void Logprobs::AddForChat(int32_t token, const v1::TokenLogprob& logprob) {
  Json json = ChatToken(token, logprob.logprob());
  json["top_logprobs"] = Json::array();
  for (int i = 0; i < Alternatives(logprob); ++i)
    json["top_logprobs"].push_back(ChatToken(logprob.top(i).token(), logprob.top(i).logprob()));
  Append(0, json);
}

std::string Logprobs::Take(const LogprobColumns& first) {
  constexpr std::string_view kChat[] = {"content"};
  constexpr std::string_view kCompletion[] = {"tokens", "token_logprobs", "top_logprobs",
                                              "text_offset"};
  const bool chat = form_ == Form::kChat;
  std::string text = "{";
  size_t column = 0;
  for (const std::string_view name : chat ? std::span<const std::string_view>(kChat)
                                          : std::span<const std::string_view>(kCompletion)) {
    text += StrCat(column == 0 ? "" : ",", "\"", name, "\":[", first[column]);
    AppendElements(columns_[column], &text);
    text += ']';
    ++column;
  }
  columns_ = {};
  return text += chat ? ",\"refusal\":null}" : "}";
}

}  // namespace polysketch
