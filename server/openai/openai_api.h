// The HTTP API: OpenAI's paths, and those of vLLM beside them. docs/openai-api.md is its reference.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/openai/http_api.h"
#include "server/openai/stored_responses.h"
#include "server/openai/text_api.h"

namespace polysketch {

class OpenAiApi : private HttpApi {
 public:
  OpenAiApi(const Router* router, ServiceContext* service, std::string model_name,
            std::unique_ptr<StoredResponses> texts);

  // Answers a request of one of the paths; returns false, and does nothing, for another path. Called
  // on the thread of the HTTP server.
  bool Handle(const Exchange& exchange);
  // Of the texts of stored responses. Thread-safe.
  StoredResponses::Stats stored() const { return texts_->stats(); }

 private:
  struct Route {
    std::string_view method;  // "GET"
    void (OpenAiApi::*answer)(const Exchange& exchange);
  };
  // A null answer for another path.
  static Route RouteOf(const std::string& path);
  void Complete(const Exchange& exchange);
  void Chat(const Exchange& exchange);
  void Respond(const Exchange& exchange);
  void Stored(const Exchange& exchange);
  void Models(const Exchange& exchange);
  void TokenizerInfo(const Exchange& exchange);
  // Runs the RPC of a text path.
  template <Result<TextJob> (*to_job)(const std::string& body, const ServedModel& model)>
  void Text(const Exchange& exchange);

  const int64_t created_;
  const std::unique_ptr<StoredResponses> texts_;
};

}  // namespace polysketch
