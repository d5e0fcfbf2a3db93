// The messages of a generation.
#pragma once

#include <memory>

#include "server/gateway/generate_request.h"
#include "server/rpc/engine_call.h"

namespace polysketch {

// Responses of Generate: with `form.stream` a chunk for the tokens that are ready, and in the end, in
// any form, the whole output of each choice as one GenerateComplete. That of a stream holds no tokens
// and no log-probabilities: the chunks have them. `call` outlives the renderer.
std::unique_ptr<Renderer> NewGenerateRenderer(EngineCall* call, const GenerateForm& form,
                                              const GenerateRequest& request);

}  // namespace polysketch
