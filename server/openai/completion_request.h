// The requests of POST /v1/completions, and the fields that other endpoints share with it.
// docs/openai-api.md lists the parameters.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/openai/json_fields.h"

namespace polysketch {

// What the response needs to know of a request.
struct CompletionOptions {
  std::string model;              // as the client named it; empty: not named
  bool stream = false;            // server-sent events
  bool include_usage = false;     // a last event with the usage
  bool continuous_usage = false;  // beside it, the usage so far in each event
  bool logprobs = false;
  bool echo = false;
  int choices = 1;  // of a prompt
};

struct CompletionJob {
  CompletionOptions options;
  std::vector<v1::CompleteRequest> requests;  // one for each prompt
};

// Number of prompts in a request.
inline constexpr size_t kMaxPrompts = 256;

// INVALID_ARGUMENT names the field.
Result<CompletionJob> ToCompletionJob(const nlohmann::json& body);

// Reads the sampling parameters, stop conditions, priority and use of the prefix cache: the fields
// that the endpoints have in common.
void ReadGeneration(JsonFields* fields, v1::CompleteRequest* request);
// Reads session, expected_position and resume_token.
void ReadSession(JsonFields* fields, v1::CompleteRequest* request);
// Reads stream and stream_options.
void ReadStreaming(JsonFields* fields, CompletionOptions* options);

}  // namespace polysketch
