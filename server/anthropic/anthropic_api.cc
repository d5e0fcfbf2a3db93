#include "server/anthropic/anthropic_api.h"

#include <nlohmann/json.hpp>

#include "server/anthropic/messages.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

constexpr std::string_view kMessages = "/v1/messages";

}  // namespace

bool IsAnthropicPath(std::string_view path) {
  return path == kMessages || path.starts_with(StrCat(kMessages, "/"));
}

bool HandleAnthropic(const HttpApi& api, const HttpApi::Exchange& exchange) {
  const std::string& path = exchange->request().path;
  const bool counts = path == StrCat(kMessages, "/count_tokens");
  if (!counts && path != kMessages) return false;
  if (!api.Admit(exchange.get(), "POST")) return true;
  api.RunChat(exchange, [exchange, &api, counts](const auto& body, const auto& hold) -> Status {
    Result<CompletionJob> job = ToMessagesJob(body, api.model(), hold);
    if (!counts) return api.RunJob(exchange, std::move(job), NewMessagesForm);
    PS_RETURN_IF_ERROR(job.status());
    PS_RETURN_IF_ERROR(api.CheckModel(job->options.model));
    const nlohmann::ordered_json count = {
        {"input_tokens", job->common.prompt().tokens().ids_size()}};
    exchange->Reply(200, kJsonType, JsonText(count) + "\n");
    return Status();
  });
  return true;
}

}  // namespace polysketch
