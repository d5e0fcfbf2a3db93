// /tokenize, /detokenize, /tokenizer_info and /v1/models: the forms of vLLM and OpenAI.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/rpc/served_model.h"

namespace polysketch {

// The RPC that answers a request of a text path.
struct TextJob {
  std::string_view method;  // in static storage
  std::unique_ptr<google::protobuf::Message> request;
  // Returns the body of the HTTP response to the response of the RPC.
  std::function<Result<nlohmann::ordered_json>(const grpc::ByteBuffer& response)> body;
};

// Each returns the job of the body of a request. Errors name the field.
Result<TextJob> ToTokenizeJob(const std::string& body, const ServedModel& model);
Result<TextJob> ToDetokenizeJob(const std::string& body, const ServedModel& model);

// The body of the response of /tokenizer_info. FAILED_PRECONDITION without a tokenizer.
Result<nlohmann::ordered_json> TokenizerInfoJson(const ServedModel& model);
// An entry of /v1/models. `created`: when the server started, in seconds since 1970.
nlohmann::ordered_json ModelJson(const std::string& name, int64_t created,
                                 const ServedModel& model);

}  // namespace polysketch
