// Runs a POST /v1/responses. A stored response has a session, whose id is part of the response's: a
// new one, or a fork of the session of the previous response, so that a response can be continued
// more than once. The call completes in that session.
#pragma once

#include <iterator>
#include <memory>
#include <string>

#include "server/http/http_exchange.h"
#include "server/net/router.h"
#include "server/openai/answer_form.h"
#include "server/openai/completion_run.h"
#include "server/openai/responses_request.h"

namespace polysketch {

class ResponseRun final : public std::enable_shared_from_this<ResponseRun> {
 public:
  // `tokenizer` may be null. `router` and `service` outlive the run.
  ResponseRun(std::shared_ptr<HttpExchange> exchange, ResponseJob response, AnswerHeader header,
              const Tokenizer* tokenizer, const Router* router, ServiceContext* service)
      : exchange_(std::move(exchange)),
        response_(std::move(response)),
        header_(std::move(header)),
        tokenizer_(tokenizer),
        router_(router),
        service_(service),
        memory_(exchange_->NewMemory(RequestPhase::kRequest)),
        held_(memory_.Hold(response_.job.MemoryBytes() + std::ssize(response_.echo))) {}

  // Called once. Everything runs on the thread of the HTTP server.
  void Start();

 private:
  using Done = std::function<void(const Status&)>;
  void OnSession(Result<std::string> session);
  void Complete();
  // Ends the session as the next turn expects it.
  void EndTurn(int32_t last_token, Done done);
  void DeleteSession();

  const std::shared_ptr<HttpExchange> exchange_;
  ResponseJob response_;
  const AnswerHeader header_;
  const Tokenizer* const tokenizer_;
  const Router* const router_;
  ServiceContext* const service_;
  HeldMemory memory_;    // of response_, until the CompletionRun holds it
  const Status held_;    // whether there is room
  std::string session_;  // empty: none
};

// Replies to DELETE /v1/responses/ID. `router` outlives the request.
void DeleteResponse(const std::shared_ptr<HttpExchange>& exchange, const std::string& id,
                    const Router* router);

}  // namespace polysketch
