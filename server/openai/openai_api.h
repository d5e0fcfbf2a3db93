// The HTTP API: OpenAI's paths, and those of vLLM beside them. docs/openai-api.md is its reference.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/chat/budget.h"
#include "server/http/http_exchange.h"
#include "server/net/router.h"
#include "server/openai/answer_form.h"
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
  struct Route {
    std::string_view method;  // "GET"
    void (OpenAiApi::*answer)(const Exchange& exchange);
  };
  // A null answer for another path.
  static Route RouteOf(const std::string& path);
  void Complete(const Exchange& exchange);
  void Chat(const Exchange& exchange);
  void Respond(const Exchange& exchange);
  void DeleteStored(const Exchange& exchange);
  void Models(const Exchange& exchange);
  void TokenizerInfo(const Exchange& exchange);
  // Runs the RPC of a text path.
  template <Result<TextJob> (*to_job)(const std::string& body, const ServedModel& model)>
  void Text(const Exchange& exchange);
  // Runs `work`, in the tokenizer pool for a large body. Holds the memory of the body as JSON and of
  // messages while it runs, and `per_byte` more for each byte of the body.
  void Run(const Exchange& exchange, const std::function<void()>& work);
  // Runs `work` in the tokenizer pool, unless the client leaves before it starts.
  // `work` gets a function that holds more until it returns.
  void RunInPool(const Exchange& exchange, int64_t per_byte,
                 const std::function<void(const chat::HoldMemory& hold)>& work);
  std::string ModelName(const ServedModel& model) const;
  // Whether a request names the model that is served, or none; replies with 404 otherwise.
  static bool CheckModel(HttpExchange* exchange, const std::string& model, const std::string& name);
  AnswerHeader HeaderOf(const HttpExchange& exchange, const ServedModel& model) const;
  using FormMaker = std::unique_ptr<AnswerForm> (*)(const CompletionOptions&, AnswerHeader);
  // Starts the calls of a request, or replies with its error.
  void RunJob(const Exchange& exchange, Result<CompletionJob> job, FormMaker make_form);

  const Router* const router_;
  ServiceContext* const service_;
  const std::string model_name_;
  const int64_t created_;
};

}  // namespace polysketch
