// Reasoning: what a request says of it, and how its output is read and bound.
#pragma once

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/chat/chat_template.h"
#include "server/openai/completion_request.h"
#include "server/openai/json_fields.h"
#include "server/rpc/served_model.h"

namespace polysketch {

struct ReasoningUse {
  bool apart = true;    // reasoning is told from the answer, where the model reasons
  bool include = true;  // the response has it
};

// Reads reasoning_format, include_reasoning and thinking parameters of llama.cpp and vLLM, and the
// effort, which the template gets: reasoning_effort, or with `nested` the member effort of
// reasoning.
ReasoningUse ReadReasoning(JsonFields* fields, bool nested, ChatOptions* options);

// Sets how the output of a job, which has its prompt and what constrains its output, is read;
// reasoning before the answer is free then. FAILED_PRECONDITION if a constraint cannot follow
// reasoning.
Status BindReasoning(const ReasoningUse& use, const ServedModel& model, CompletionJob* job);

}  // namespace polysketch
