// /tokenize, /detokenize, /tokenizer_info and /v1/models: the forms of vLLM and OpenAI.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/rpc/served_model.h"

namespace polysketch {

// The RPC that answers a request of a text path.
template <typename Request, typename Response>
struct TextJob {
  std::string_view method;  // in static storage
  std::string model;        // as the client named it; empty: not named
  Request request;
  // The body of the HTTP response.
  std::function<nlohmann::ordered_json(const Response& response)> body;
};
using TokenizeJob = TextJob<v1::TokenizeRequest, v1::TokenizeResponse>;
using DetokenizeJob = TextJob<v1::DetokenizeRequest, v1::DetokenizeResponse>;

// Each returns the job of the body of a request. Errors name the field.
Result<TokenizeJob> ToTokenizeJob(const nlohmann::ordered_json& body, const ServedModel& model);
Result<DetokenizeJob> ToDetokenizeJob(const nlohmann::ordered_json& body, const ServedModel& model);

// The body of the response of /tokenizer_info. FAILED_PRECONDITION without a tokenizer.
Result<nlohmann::ordered_json> TokenizerInfoJson(const ServedModel& model);
// An entry of /v1/models. `created`: when the server started, in seconds since 1970.
nlohmann::ordered_json ModelJson(const std::string& name, int64_t created,
                                 const ServedModel& model);

}  // namespace polysketch
