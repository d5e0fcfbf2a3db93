// Tokenize, Detokenize and GetModel.
#include <string>

#include "engine/tokenizer/marked_text.h"
#include "server/convert/status_map.h"
#include "server/rpc/service.h"
#include "server/rpc/unary_call.h"

namespace polysketch {
namespace {

Status Tokenize(const v1::TokenizeRequest& request, const RequestInfo&, const ServedModel& model,
                v1::TokenizeResponse* response) {
  const RequestRules& rules = model.rules;
  PS_RETURN_IF_ERROR(RequireTokenizer(rules, "text"));
  if (request.add_bos() && rules.bos_id < 0) {
    return FailedPrecondition("add_bos: this model has no BOS");
  }
  Result<std::vector<int32_t>> encoded =
      request.parse_special()
          ? EncodeMarkedText(*rules.tokenizer, MarkedText(request.text(), TextOrigin::kTemplate),
                             false)
          : rules.tokenizer->Encode(request.text());
  if (!encoded.ok()) return Prefixed("text: ", encoded.status());
  if (request.has_add_bos() ? request.add_bos() : rules.add_bos) response->add_tokens(rules.bos_id);
  response->mutable_tokens()->Add(encoded->begin(), encoded->end());
  for (const int32_t id : response->tokens())
    response->add_pieces(std::string(rules.tokenizer->Piece(id)));
  return Status();
}

Status Detokenize(const v1::DetokenizeRequest& request, const RequestInfo&,
                  const ServedModel& model, v1::DetokenizeResponse* response) {
  const RequestRules& rules = model.rules;
  PS_RETURN_IF_ERROR(RequireTokenizer(rules, "tokens"));
  const std::span<const int32_t> ids(request.tokens().data(), request.tokens().size());
  PS_RETURN_IF_ERROR(CheckTokenIds("tokens", ids, rules.vocab_size));
  IncrementalDecoder decoder(rules.tokenizer, /*continued=*/false);
  for (const int32_t id : ids) response->mutable_text()->append(decoder.Append(id));
  response->mutable_text()->append(decoder.Finish());
  return Status();
}

Status GetModel(const v1::GetModelRequest&, const RequestInfo&, const ServedModel& model,
                v1::GetModelResponse* response) {
  *response = model.description;
  return Status();
}

}  // namespace

void AddTextMethods(ServiceContext* context, Router* router) {
  AddUnaryMethod("Tokenize", Tokenize, context, router);
  AddUnaryMethod("Detokenize", Detokenize, context, router);
  AddUnaryMethod("GetModel", GetModel, context, router);
}

}  // namespace polysketch
