// The requests of POST /v1/completions, and the fields that other endpoints share with it.
// docs/openai-api.md lists the parameters.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/chat/reasoning.h"
#include "server/chat/tool_parser.h"
#include "server/convert/status_map.h"
#include "server/openai/json_fields.h"
#include "server/openai/structured_output.h"
#include "server/rpc/served_model.h"

namespace polysketch {

// What the response needs to know of a request.
struct CompletionOptions {
  std::string model;              // as the client named it; empty: not named
  bool chat = false;              // the prompt is a conversation
  bool stream = false;            // server-sent events
  bool include_usage = false;     // a last event with the usage
  bool continuous_usage = false;  // beside it, the usage so far in each event
  bool logprobs = false;
  int alternatives = 0;                // with logprobs: of each token of the output
  std::optional<int> prompt_logprobs;  // alternatives of each token of the prompt, without an echo
  bool echo = false;
  int choices = 1;  // of a prompt
  // How calls of tools in the output are read; nullopt: all is text.
  std::optional<ToolParsing> tools;
  // How reasoning is told from the answer; nullopt: all is the answer.
  std::optional<ReasoningReader> reasoning;
  bool include_reasoning = true;       // else it is dropped
  std::string request_id;              // in place of the header's, in the answer; empty: none
  std::vector<std::string> turn_ends;  // stop strings of the chat template, not of the client
  std::string prefix;                  // of the text of each choice: what the answer continues
  // With skip_special_tokens: control pieces that the text has, since it is read by them.
  std::vector<std::string_view> marks;     // static
  bool token_ids = false;                  // those of prompt and output are returned
  bool tokens_as_ids = false;              // tokens of log-probabilities are named by their ids
  std::optional<int64_t> truncate_prompt;  // to this number of tokens; -1: to what the model takes
  bool migrates = true;                    // a client can continue the answer on another replica
  GrammarFields grammar;
  // How the client names fields of the RPC, for errors: "max_completion_tokens" for "max_tokens".
  FieldNames field_names = {{"sampling.", ""},
                            {"cache.salt", "cache_salt"},
                            {"prompt.text", "prompt"},
                            {"prompt.tokens.ids", "prompt"}};
  void Name(std::string_view field, std::string_view as) {
    field_names.insert(field_names.begin(), {field, as});
  }
};

// One Complete call for each prompt. What the calls have in common is there once.
struct CompletionJob {
  CompletionOptions options;
  v1::CompleteRequest common;       // of one call: with its prompt, if it has one
  std::vector<v1::Prompt> prompts;  // of several calls, or of one; empty: that of `common`

  size_t calls() const { return prompts.empty() ? 1 : prompts.size(); }
  // The request of a call.
  v1::CompleteRequest Request(size_t call) const;
  // The memory of the job, and of the requests of all calls: each call reads its own after all of
  // them have started.
  int64_t MemoryBytes() const;
};

// Number of prompts in a request.
inline constexpr size_t kMaxPrompts = 256;

// INVALID_ARGUMENT names the field. `model`: makes token ids of texts where the request needs them;
// null: it does not.
Result<CompletionJob> ToCompletionJob(const nlohmann::ordered_json& body,
                                      const ServedModel* model = nullptr);

// The context limit of the model; without one, what a prompt may have.
int64_t MaxModelTokens(const ServedModel& model);
// Reads the limit of the output; of several names the last that is there counts. Errors have it, or
// the last name.
void ReadMaxTokens(JsonFields* fields, std::initializer_list<const char*> names,
                   CompletionJob* job);
// Reads prompt_logprobs. The limits of the response, logprobs and echo of the request are read.
void ReadPromptLogprobs(JsonFields* fields, CompletionOptions* options,
                        v1::CompleteRequest* request);
// Leaves the last tokens of a prompt of token ids, as truncate_prompt_tokens says.
void TruncatePrompt(const ServedModel& model, const CompletionJob& job, v1::Prompt* prompt);

// Has the text of the output contain marks, which may be control pieces: others are taken out of it
// (control_filter.h), unless the request shows all.
void ShowMarks(std::initializer_list<std::string_view> marks, CompletionJob* job);

// Reads the sampling parameters, stop conditions, priority and use of the prefix cache: the fields
// that the endpoints have in common.
void ReadGeneration(JsonFields* fields, CompletionJob* job);
// Reads what text completions and chat completions have in common beside the prompt.
void ReadCompletion(JsonFields* fields, const nlohmann::ordered_json& body, CompletionJob* job);
// Reads session, expected_position and resume_token.
void ReadSession(JsonFields* fields, v1::CompleteRequest* request);
// Reads stream and stream_options.
void ReadStreaming(JsonFields* fields, CompletionOptions* options);

}  // namespace polysketch
