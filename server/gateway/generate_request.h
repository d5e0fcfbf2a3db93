// GenerateRequest of vllm.grpc.engine -> CompleteRequest of polysketch.v1, and the messages of its
// answer.
#pragma once

#include <memory>
#include <optional>

#include "base/status.h"
#include "polysketch/v1/polysketch.pb.h"
#include "server/convert/convert.h"
#include "server/rpc/engine_call.h"
#include "vllm_engine.pb.h"

namespace polysketch {

namespace vllm_engine = ::vllm::grpc::engine;

// What the responses to a GenerateRequest depend on.
struct GenerateForm {
  bool stream = false;
  // Alternatives of each token of the output, and of the prompt; unset: no log-probabilities.
  std::optional<int> logprobs;
  std::optional<int> prompt_logprobs;
};

GenerateForm FormOf(const vllm_engine::GenerateRequest& request);

// INVALID_ARGUMENT names a field that has no counterpart, or whose value has none. BOS precedes a
// prompt of token ids that does not begin with it, if `rules` say that BOS precedes text: gateways
// tokenize the prompts of completions without BOS.
Result<v1::CompleteRequest> ToCompleteRequest(const vllm_engine::GenerateRequest& request,
                                              const RequestRules& rules);

// Replaces the field of CompleteRequest that begins the message by the field of GenerateRequest.
Status NameGenerateFields(const Status& status);

// Responses of Generate: with `form.stream` a chunk for the tokens that are ready, and in the end,
// in any form, the whole output of each choice as one GenerateComplete. That of a stream holds no
// tokens and no log-probabilities: the chunks have them. `call` outlives the renderer.
std::unique_ptr<Renderer> NewGenerateRenderer(EngineCall* call, const GenerateForm& form,
                                              const GenerateRequest& request);

}  // namespace polysketch
