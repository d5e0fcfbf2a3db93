// Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens. docs/anthropic-api.md is its
// reference.
#pragma once

#include <string_view>

#include "server/openai/http_api.h"

namespace polysketch {

// Whether clients of Anthropic's ask for the path: its errors have their shape.
bool IsAnthropicPath(std::string_view path);

// Answers a request of one of the paths; returns false, and does nothing, for another path. Called
// on the thread of the HTTP server.
bool HandleAnthropic(const HttpApi& api, const HttpApi::Exchange& exchange);

}  // namespace polysketch
