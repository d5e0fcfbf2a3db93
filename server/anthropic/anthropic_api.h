// Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens. docs/anthropic-api.md is its
// reference.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "server/openai/http_api.h"

namespace polysketch {

class AnthropicApi : private HttpApi {
 public:
  // As HttpApi.
  AnthropicApi(const Router* router, ServiceContext* service, std::string model_name)
      : HttpApi(router, service, std::move(model_name)) {}

  // Whether clients of Anthropic's ask for the path: its errors have their shape.
  static bool IsPath(std::string_view path);

  // Answers a request of one of the paths; returns false, and does nothing, for another path. Called
  // on the thread of the HTTP server.
  bool Handle(const Exchange& exchange);

 private:
  void Message(const Exchange& exchange) const;
  void CountTokens(const Exchange& exchange) const;
};

}  // namespace polysketch
