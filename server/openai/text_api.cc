#include "server/openai/text_api.h"

#include <utility>

#include "server/chat/chat_template.h"
#include "server/openai/completion_request.h"
#include "server/openai/json_fields.h"

namespace polysketch {

using Json = nlohmann::ordered_json;

Result<TokenizeJob> ToTokenizeJob(const Json& body, const ServedModel& model) {
  JsonFields fields(body);
  v1::TokenizeRequest request;
  request.set_text(fields.NeededString("prompt"));
  if (!fields.Bool("add_special_tokens").value_or(true)) request.set_add_bos(false);
  request.set_parse_special(fields.Bool("parse_special").value_or(true));
  const bool with_pieces = fields.Bool("return_token_strs").value_or(false);
  std::string name = fields.String("model").value_or("");
  PS_RETURN_IF_ERROR(fields.Finish());
  const auto to_body = [max_tokens = MaxModelTokens(model),
                        with_pieces](const v1::TokenizeResponse& response) {
    Json json;
    json["count"] = response.tokens_size();
    json["max_model_len"] = max_tokens;
    json["tokens"] = response.tokens();
    if (with_pieces) json["token_strs"] = response.pieces();
    return json;
  };
  return TokenizeJob{"Tokenize", std::move(name), std::move(request), to_body};
}

Result<DetokenizeJob> ToDetokenizeJob(const Json& body, const ServedModel&) {
  JsonFields fields(body);
  v1::DetokenizeRequest request;
  (void)fields.Needed("tokens", "an array of token ids");
  if (const auto ids = fields.Integers("tokens"))
    request.mutable_tokens()->Assign(ids->begin(), ids->end());
  std::string name = fields.String("model").value_or("");
  PS_RETURN_IF_ERROR(fields.Finish());
  return DetokenizeJob{"Detokenize", std::move(name), std::move(request),
                       [](const v1::DetokenizeResponse& response) {
                         return Json{{"prompt", response.text()}};
                       }};
}

Result<Json> TokenizerInfoJson(const ServedModel& model) {
  PS_RETURN_IF_ERROR(RequireTokenizer(model.rules, "tokenizer_info"));
  const Tokenizer& tokenizer = *model.rules.tokenizer;
  const auto piece = [&](int id) {
    return id < 0 ? Json() : Json(std::string(tokenizer.Piece(id)));
  };
  Json json;
  json["tokenizer_class"] = tokenizer.class_name();
  json["vocab_size"] = tokenizer.vocab_size();
  json["bos_token"] = piece(tokenizer.bos_id());
  json["eos_token"] = piece(tokenizer.eos_id());
  json["pad_token"] = nullptr;
  json["add_bos_token"] = model.rules.add_bos;
  json["chat_template"] =
      model.chat_template == nullptr ? Json() : Json(model.chat_template->source());
  return json;
}

Json ModelJson(const std::string& name, int64_t created, const ServedModel& model) {
  Json json;
  json["id"] = name;
  json["object"] = "model";
  json["created"] = created;
  json["owned_by"] = "polysketch";
  json["root"] = model.description.name();
  json["max_model_len"] = MaxModelTokens(model);
  return json;
}

}  // namespace polysketch
