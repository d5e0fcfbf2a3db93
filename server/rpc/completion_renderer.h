// The messages of a completion.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "server/rpc/engine_call.h"

namespace polysketch {

// The response of the RPC: a stream of CompleteResponse, or one CompleteUnaryResponse.
enum class CompletionForm { kStream, kUnary };

// Memory of a token in a CompleteUnaryResponse, without its text, if it is returned with its
// log-probability and with `alternatives`; nullopt: without a log-probability.
int64_t UnaryTokenBytes(std::optional<int64_t> alternatives);
// Limit of the memory of one CompleteUnaryResponse.
int64_t MaxUnaryBytes(const ServiceContext& service);

// `call` outlives the renderer. `params` are those of its request. `return_state`: the state at the
// end is sent before the finish; kStream only.
std::unique_ptr<Renderer> NewCompletionRenderer(EngineCall* call, CompletionForm form,
                                                const GenerateParams& params, bool return_state);

}  // namespace polysketch
