#include "server/anthropic/anthropic_api.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "server/anthropic/messages_form.h"
#include "server/anthropic/messages_request.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

constexpr std::string_view kMessages = "/v1/messages";

// The API has no way to continue a message on another replica.
CompletionRun::Hooks RefuseMigration(const std::shared_ptr<HttpExchange>& exchange) {
  CompletionRun::Hooks hooks;
  hooks.before_end = [exchange](const Answer& answer, std::function<void(const Status&)> done) {
    const bool migrated = !answer.resume_token.empty();
    exchange->Post([migrated, done = std::move(done)] {
      done(migrated ? Unavailable("the server is draining").WithReason(Reason::kDraining)
                    : Status());
    });
  };
  return hooks;
}

}  // namespace

bool AnthropicApi::IsPath(std::string_view path) {
  return path == kMessages || path.starts_with(StrCat(kMessages, "/"));
}

bool AnthropicApi::Handle(const Exchange& exchange) {
  const std::string& path = exchange->request().path;
  const bool counts = path == StrCat(kMessages, "/count_tokens");
  if (!counts && path != kMessages) return false;
  if (!Admit(exchange.get(), "POST")) return true;
  counts ? CountTokens(exchange) : Message(exchange);
  return true;
}

void AnthropicApi::Message(const Exchange& exchange) const {
  RunChat(exchange, [exchange, this](const auto& body, const chat::HoldMemory& hold) {
    return RunJob(exchange, ToMessagesJob(body, model(), hold), NewMessagesForm,
                  RefuseMigration(exchange));
  });
}

void AnthropicApi::CountTokens(const Exchange& exchange) const {
  RunChat(exchange, [exchange, this](const auto& body, const chat::HoldMemory& hold) -> Status {
    PS_ASSIGN_OR_RETURN(const CompletionJob job, ToMessagesJob(body, model(), hold));
    PS_RETURN_IF_ERROR(CheckModel(job.options.model));
    const nlohmann::ordered_json count = {
        {"input_tokens", job.common.prompt().tokens().ids_size()}};
    exchange->Reply(200, kJsonType, JsonText(count) + "\n");
    return Status();
  });
}

}  // namespace polysketch
