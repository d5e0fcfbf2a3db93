// Runs a POST /v1/responses. A stored response has a session, whose id is part of the response's: a
// new one, or a fork of the session of the previous response, so that a response can be continued
// more than once. The call completes in that session.
#pragma once

#include <google/protobuf/message.h>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "server/openai/http_api.h"
#include "server/openai/responses_request.h"

namespace polysketch {

class ResponseRun final : public std::enable_shared_from_this<ResponseRun> {
 public:
  // `input`: of InputItems, for the text of a stored response. `api` outlives the run.
  ResponseRun(std::shared_ptr<HttpExchange> exchange, ResponseJob response, std::string input,
              const HttpApi& api)
      : exchange_(std::move(exchange)),
        response_(std::move(response)),
        input_(std::move(input)),
        header_(api.HeaderOf(*exchange_)),
        api_(api),
        memory_(exchange_->NewMemory(RequestPhase::kRequest)),
        held_(memory_.Hold(response_.job.MemoryBytes() + std::ssize(response_.echo) +
                           std::ssize(input_))) {}

  // Called once. Everything runs on the thread of the HTTP server.
  void Start();

 private:
  using Done = std::function<void(const Status&)>;
  // Starts a unary RPC.
  template <typename Response, typename F>
  void Call(std::string_view method, const google::protobuf::Message& request, const F& done);
  void OnSession(Result<std::string> session);
  void Complete();
  // Ends the session as the next turn expects it.
  void EndTurn(int32_t last_token, Done done);
  void DeleteSession();
  // What keeps the response, for its form; null: it is not stored.
  std::function<void(const std::string&)> Keeper();

  const std::shared_ptr<HttpExchange> exchange_;
  ResponseJob response_;
  const std::string input_;
  const AnswerHeader header_;
  const HttpApi& api_;
  HeldMemory memory_;    // of input_ and, until the CompletionRun holds it, of response_
  const Status held_;    // whether there is room
  std::string session_;  // empty: none
};

// Replies to DELETE of a stored response.
void DeleteResponse(const std::shared_ptr<HttpExchange>& exchange, const std::string& id,
                    const HttpApi& api);
// Each replies to GET, of a stored response and of its input_items, or returns the error. May wait
// for the state store. `hold`: of memory until it returns.
Status RetrieveResponse(HttpExchange* exchange, const std::string& id, const chat::HoldMemory& hold,
                        const HttpApi& api);
Status ListInputItems(HttpExchange* exchange, const std::string& id, const chat::HoldMemory& hold,
                      const HttpApi& api);

}  // namespace polysketch
