// The requests of POST /v1/responses, and the form of the answers.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/status.h"
#include "server/chat/budget.h"
#include "server/openai/answer_form.h"
#include "server/openai/completion_request.h"
#include "server/rpc/served_model.h"

namespace polysketch {

inline constexpr std::string_view kResponseIdPrefix = "resp_";
// The id of a stored response: resp_SESSION, and _DIGEST for a conversation with instructions. So
// the server knows them again, whichever replica reads the session, without their texts.
struct ResponseId {
  std::string session;
  std::string digest = {};  // of the instructions; empty: none

  std::string ToString() const;
};

// NOT_FOUND for another id.
Result<ResponseId> ParseResponseId(const std::string& id, const std::string& field);

struct ResponseJob {
  CompletionJob job;      // one request
  bool store = true;      // whether the session of the response remains
  ResponseId id;          // of the response, without its session
  ResponseId previous;    // that the response continues; no session: none
  int32_t turn_end = -1;  // the token that must end the session; -1: none
  // What the response repeats of the request: "instructions", "temperature", ...
  std::string echo;
};

// INVALID_ARGUMENT names the field.
Result<ResponseJob> ToResponseJob(const nlohmann::ordered_json& body, const ServedModel& model,
                                  chat::HoldMemory hold = nullptr);

// Messages of text, reasoning and calls of tools, whole or as typed events.
// `id`: of the response. `echo`: fields of the request that the response repeats, an object as
// text. `options`: how calls and reasoning in the output are read.
// `keep`: gets the response, as JSON, before it is sent; null: none.
std::unique_ptr<AnswerForm> NewResponseForm(
    const std::string& id, std::string echo, AnswerHeader header, const CompletionOptions& options,
    std::function<void(const std::string& response)> keep = nullptr);

}  // namespace polysketch
