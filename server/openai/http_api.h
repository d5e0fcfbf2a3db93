// What the paths of the HTTP APIs have in common: the checks of a request, the threads that parse
// it, and the run of its calls. A protocol is a function that answers requests of its paths, as
// HandleOpenAi.
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
#include "server/openai/stored_responses.h"
#include "server/rpc/service_context.h"

namespace polysketch {

class HttpApi {
 public:
  using Exchange = std::shared_ptr<HttpExchange>;
  // Makes the form of the answer to a job.
  using FormMaker = std::unique_ptr<AnswerForm> (*)(const CompletionOptions&, AnswerHeader);
  // Each returns the error to reply with. `hold` holds more memory until it returns.
  using Work = std::function<Status(const chat::HoldMemory& hold)>;
  using BodyWork =
      std::function<Status(const nlohmann::ordered_json& body, const chat::HoldMemory& hold)>;

  // Bytes for each byte of a chat: its messages and the text of the prompt, beside what the
  // template makes, and ids, of which each byte may have one.
  static constexpr int64_t kChatPerByte = 20;

  // `model_name`: the name of the model in the API; empty: the name of its folder. `router` and
  // `service` outlive the requests, and so does the object. `texts`: of stored responses.
  HttpApi(const Router* router, ServiceContext* service, std::string model_name,
          std::unique_ptr<StoredResponses> texts)
      : router_(router),
        service_(service),
        model_name_(std::move(model_name)),
        texts_(std::move(texts)) {}

  // Whether a request may run: `method` is its own, a POST has JSON, and the server has a model and
  // does not drain. Replies with the error otherwise.
  bool Admit(HttpExchange* exchange, std::string_view method) const;
  // Runs `work` with the body, as ParseCompletionBody reads it: at once if it is small, otherwise
  // as RunChat, without the memory of a chat.
  void RunBody(const Exchange& exchange, const BodyWork& work) const;
  // Runs `work` in the tokenizer pool, unless the client leaves before it starts: a template takes
  // time. Holds the memory of the body as JSON, of messages and of a chat while it runs.
  void RunChat(const Exchange& exchange, const BodyWork& work) const {
    RunInPool(exchange, kChatPerByte, work);
  }
  // Runs `work`, which may wait for the state store, on one of its threads.
  void RunOnStore(const Exchange& exchange, const Work& work) const;
  // Starts the calls of a request.
  Status RunJob(const Exchange& exchange, Result<CompletionJob> job, FormMaker make_form) const;

  std::string ModelName() const;
  // NOT_FOUND unless a request names the model that is served, or none.
  Status CheckModel(const std::string& model) const;
  AnswerHeader HeaderOf(const HttpExchange& exchange) const;
  // After Admit.
  const ServedModel& model() const { return *service_->model.load(); }
  const Router* router() const { return router_; }
  ServiceContext* service() const { return service_; }
  StoredResponses* texts() const { return texts_.get(); }
  // Null without --state-store. After Admit.
  StateStore* store() const { return model().sessions->options().store; }
  int64_t started() const { return started_; }  // seconds since 1970

 private:
  // `per_byte`: memory for each byte of the body, beside that of its JSON and of messages.
  void RunInPool(const Exchange& exchange, int64_t per_byte, const BodyWork& work) const;

  const Router* const router_;
  ServiceContext* const service_;
  const std::string model_name_;
  const std::unique_ptr<StoredResponses> texts_;
  const int64_t started_ = UnixSeconds();
};

}  // namespace polysketch
