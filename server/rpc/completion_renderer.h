// The messages of a completion.
#pragma once

#include <memory>

#include "server/rpc/engine_call.h"

namespace polysketch {

// The response of the RPC: a stream of CompleteResponse, or one CompleteUnaryResponse.
enum class CompletionForm { kStream, kUnary };

// `call` outlives the renderer. `params` are those of its request. `return_state`: the state at the
// end is sent before the finish; kStream only.
std::unique_ptr<Renderer> NewCompletionRenderer(EngineCall* call, CompletionForm form,
                                                const GenerateParams& params, bool return_state);

}  // namespace polysketch
