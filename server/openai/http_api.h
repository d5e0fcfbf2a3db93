// What the HTTP APIs of completions have in common: the checks of a request, the threads that parse it,
// and the run of its calls.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/chat/budget.h"
#include "server/http/http_exchange.h"
#include "server/net/router.h"
#include "server/openai/answer_form.h"
#include "server/openai/completion_run.h"
#include "server/rpc/service_context.h"

namespace polysketch {

class HttpApi {
 protected:
  using Exchange = std::shared_ptr<HttpExchange>;
  // Makes the form of the answer to a job.
  using FormMaker = std::unique_ptr<AnswerForm> (*)(const CompletionOptions&, AnswerHeader);

  // Bytes for each byte of a chat: its messages and the text of the prompt, beside what the template
  // makes, and ids, of which each byte may have one.
  static constexpr int64_t kChatPerByte = 20;

  // `model_name`: the name of the model in the API; empty: the name of its folder. `router` and
  // `service` outlive the requests.
  HttpApi(const Router* router, ServiceContext* service, std::string model_name)
      : router_(router), service_(service), model_name_(std::move(model_name)) {}

  // Whether a request may run: `method` is its own, a POST has JSON, and the server has a model and
  // does not drain. Replies with the error otherwise.
  bool Admit(HttpExchange* exchange, std::string_view method) const;
  // Runs `work`, in the tokenizer pool for a large body. Holds the memory of the body as JSON and of
  // messages while it runs, and `per_byte` more for each byte of the body.
  void Run(const Exchange& exchange, const std::function<void()>& work) const;
  // Runs `work` in the tokenizer pool, unless the client leaves before it starts.
  // `work` gets a function that holds more until it returns.
  void RunInPool(const Exchange& exchange, int64_t per_byte,
                 const std::function<void(const chat::HoldMemory& hold)>& work) const;
  // Starts the calls of a request, or replies with its error.
  void RunJob(const Exchange& exchange, Result<CompletionJob> job, FormMaker make_form,
              CompletionRun::Hooks hooks = {}) const;

  std::string ModelName() const;
  // Whether a request names the model that is served, or none; replies with 404 otherwise.
  bool CheckModel(HttpExchange* exchange, const std::string& model) const;
  AnswerHeader HeaderOf(const HttpExchange& exchange) const;
  // After Admit.
  const ServedModel& model() const { return *service_->model.load(); }
  const Router* router() const { return router_; }
  ServiceContext* service() const { return service_; }

 private:
  const Router* const router_;
  ServiceContext* const service_;
  const std::string model_name_;
};

}  // namespace polysketch
