// The HTTP API: OpenAI's paths, and those of vLLM beside them. docs/openai-api.md is its reference.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/http/http_exchange.h"
#include "server/net/router.h"
#include "server/openai/text_api.h"
#include "server/rpc/service_context.h"

namespace polysketch {

class OpenAiApi {
 public:
  // `model_name`: the name of the model in the API; empty: the name of its folder. `router` and
  // `service` outlive the requests.
  OpenAiApi(const Router* router, ServiceContext* service, std::string model_name);

  // Answers a request of one of the paths; returns false, and does nothing, for another path. Called
  // on the thread of the HTTP server.
  bool Handle(const std::shared_ptr<HttpExchange>& exchange);

 private:
  using Exchange = std::shared_ptr<HttpExchange>;
  using Answer = void (OpenAiApi::*)(const Exchange& exchange);
  // Null for another path. The method is GET or POST.
  static Answer AnswerOf(const std::string& path, bool* is_get);
  void Complete(const Exchange& exchange);
  void Models(const Exchange& exchange);
  void TokenizerInfo(const Exchange& exchange);
  // Runs the RPC of a text path.
  template <Result<TextJob> (*to_job)(const std::string& body, const ServedModel& model)>
  void Text(const Exchange& exchange);
  // Runs `work`, on a tokenizer thread for a large body.
  void Run(const Exchange& exchange, const std::function<void()>& work);
  std::string ModelName(const ServedModel& model) const;

  const Router* const router_;
  ServiceContext* const service_;
  const std::string model_name_;
  const int64_t created_;
};

}  // namespace polysketch
