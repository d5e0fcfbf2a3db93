#include "server/openai/text_api.h"

#include <algorithm>
#include <map>

#include "server/convert/status_map.h"
#include "server/http/json_text.h"
#include "server/openai/json_fields.h"

namespace polysketch {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return JsonText(json) + "\n"; }

// The pieces that are control ids, the longest first.
std::vector<std::pair<std::string, int32_t>> ControlPieces(const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string, int32_t>> pieces;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.IsControl(id) && !tokenizer.Piece(id).empty())
      pieces.emplace_back(tokenizer.Piece(id), id);
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  return pieces;
}

// Reads a request to its end: fields of vLLM that have no effect here are ignored.
Status FinishTextRequest(JsonFields* fields) {
  fields->Ignore({"model"});
  return fields->Finish();
}

}  // namespace

Result<std::vector<int32_t>> EncodeWithControlPieces(const Tokenizer& tokenizer,
                                                     const std::string& text) {
  const auto pieces = ControlPieces(tokenizer);
  std::vector<int32_t> ids;
  size_t begin = 0;  // of the text that is not yet encoded
  const auto encode = [&](size_t end) -> Status {
    if (begin == end) return Status();
    IncrementalEncoder encoder(&tokenizer, /*continued=*/begin > 0);
    for (const auto& encoded :
         {encoder.Append(std::string_view(text).substr(begin, end - begin)), encoder.Finish()}) {
      PS_RETURN_IF_ERROR(encoded.status());
      ids.insert(ids.end(), encoded->begin(), encoded->end());
    }
    return Status();
  };
  for (size_t at = 0; at < text.size();) {
    const auto found = std::find_if(pieces.begin(), pieces.end(), [&](const auto& piece) {
      return text.compare(at, piece.first.size(), piece.first) == 0;
    });
    if (found == pieces.end()) {
      ++at;
      continue;
    }
    PS_RETURN_IF_ERROR(encode(at));
    ids.push_back(found->second);
    at += found->first.size();
    begin = at;
  }
  PS_RETURN_IF_ERROR(encode(text.size()));
  return ids;
}

Result<std::string> TokenizeJson(const std::string& body, const ServedModel& model) {
  PS_ASSIGN_OR_RETURN(const nlohmann::json request, ParseJsonObject(body));
  JsonFields fields(request);
  const auto text = fields.String("prompt");
  const bool add_special = fields.Bool("add_special_tokens").value_or(true);
  const bool with_pieces = fields.Bool("return_token_strs").value_or(false);
  const bool parse_special = fields.Bool("parse_special").value_or(true);
  if (!text.has_value()) fields.Fail("prompt", "expected a string, found none");
  PS_RETURN_IF_ERROR(FinishTextRequest(&fields));
  const RequestRules& rules = model.rules;
  PS_RETURN_IF_ERROR(RequireTokenizer(rules, "prompt"));
  Result<std::vector<int32_t>> encoded = parse_special
                                             ? EncodeWithControlPieces(*rules.tokenizer, *text)
                                             : rules.tokenizer->Encode(*text);
  if (!encoded.ok()) return Prefixed("prompt: ", encoded.status());
  std::vector<int32_t> ids = *std::move(encoded);
  if (add_special && rules.add_bos) ids.insert(ids.begin(), rules.bos_id);
  Json json;
  json["count"] = ids.size();
  json["max_model_len"] = rules.max_prompt_tokens;
  json["tokens"] = ids;
  if (with_pieces) {
    json["token_strs"] = Json::array();
    for (const int32_t id : ids)
      json["token_strs"].push_back(std::string(rules.tokenizer->Piece(id)));
  }
  return Dump(json);
}

Result<std::string> DetokenizeJson(const std::string& body, const ServedModel& model) {
  PS_ASSIGN_OR_RETURN(const nlohmann::json request, ParseJsonObject(body));
  JsonFields fields(request);
  const auto ids = fields.Integers("tokens");
  if (!ids.has_value()) fields.Fail("tokens", "expected an array of token ids, found none");
  PS_RETURN_IF_ERROR(FinishTextRequest(&fields));
  PS_RETURN_IF_ERROR(RequireTokenizer(model.rules, "tokens"));
  PS_RETURN_IF_ERROR(CheckTokenIds("tokens", *ids, model.rules.vocab_size));
  IncrementalDecoder decoder(model.rules.tokenizer, /*continued=*/false);
  std::string text;
  for (const int32_t id : *ids) text += decoder.Append(id);
  text += decoder.Finish();
  return Dump({{"prompt", text}});
}

Result<std::string> TokenizerInfoJson(const std::string&, const ServedModel& model) {
  PS_RETURN_IF_ERROR(RequireTokenizer(model.rules, "tokenizer_info"));
  const Tokenizer& tokenizer = *model.rules.tokenizer;
  const auto piece = [&](int id) {
    return id < 0 ? Json() : Json(std::string(tokenizer.Piece(id)));
  };
  Json json;
  json["tokenizer_class"] = "SentencePiece";
  json["vocab_size"] = tokenizer.vocab_size();
  json["bos_token"] = piece(tokenizer.bos_id());
  json["eos_token"] = piece(tokenizer.eos_id());
  json["pad_token"] = nullptr;
  json["add_bos_token"] = model.rules.add_bos;
  json["chat_template"] = nullptr;
  return Dump(json);
}

Json ModelJson(const std::string& name, int64_t created, const ServedModel& model) {
  Json json;
  json["id"] = name;
  json["object"] = "model";
  json["created"] = created;
  json["owned_by"] = "polysketch";
  json["root"] = model.description.name();
  json["max_model_len"] = model.rules.max_prompt_tokens;
  return json;
}

}  // namespace polysketch
