// The HTTP API: OpenAI's paths, and those of vLLM beside them. docs/openai-api.md is its reference.
#pragma once

#include "server/openai/http_api.h"

namespace polysketch {

// Answers a request of one of the paths; returns false, and does nothing, for another path. Called
// on the thread of the HTTP server.
bool HandleOpenAi(const HttpApi& api, const HttpApi::Exchange& exchange);

}  // namespace polysketch
