#include "server/openai/openai_api.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/convert/request_id.h"
#include "server/convert/status_map.h"
#include "server/http/http_call.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "server/openai/response_items.h"
#include "server/openai/response_run.h"
#include "server/openai/responses_request.h"
#include "server/openai/text_api.h"

namespace polysketch {
namespace {

constexpr std::string_view kModels = "/v1/models";
constexpr std::string_view kResponses = "/v1/responses";
constexpr std::string_view kItems = "/input_items";

using Exchange = HttpApi::Exchange;
using Json = nlohmann::ordered_json;

void Models(const HttpApi& api, const Exchange& exchange) {
  const std::string& path = exchange->request().path;
  const std::string name = path.substr(std::min(path.size(), kModels.size() + 1));
  if (const Status found = api.CheckModel(name); !found.ok())
    return ReplyError(exchange.get(), found);
  Json json = ModelJson(api.ModelName(), api.started(), api.model());
  if (name.empty()) json = {{"object", "list"}, {"data", Json::array({json})}};
  exchange->Reply(200, kJsonType, JsonText(json) + "\n");
}

void TokenizerInfo(const HttpApi& api, const Exchange& exchange) {
  Result<Json> info = TokenizerInfoJson(api.model());
  if (!info.ok()) return ReplyError(exchange.get(), info.status());
  exchange->Reply(200, kJsonType, JsonText(*info) + "\n");
}

// Runs the RPC of a text path.
template <typename Request, typename Response>
void RunText(const HttpApi& api, const Exchange& exchange,
             Result<TextJob<Request, Response>> (*to_job)(const Json&, const ServedModel&)) {
  api.RunBody(exchange, [exchange, &api, to_job](const Json& body, const auto&) -> Status {
    struct Started {
      HeldMemory held;
      TextJob<Request, Response> job;
    };
    PS_ASSIGN_OR_RETURN(auto job, to_job(body, api.model()));
    PS_RETURN_IF_ERROR(api.CheckModel(job.model));
    const auto started = std::make_shared<Started>(
        Started{exchange->NewMemory(RequestPhase::kRequest), std::move(job)});
    PS_RETURN_IF_ERROR(
        started->held.Hold(static_cast<int64_t>(started->job.request.SpaceUsedLong())));
    const auto reply = [exchange, to_body = started->job.body](const Result<Response>& response) {
      if (!response.ok())
        return ReplyError(exchange.get(), Renamed(response.status(), {{"text", "prompt"}}));
      exchange->Reply(200, kJsonType, JsonText(to_body(*response)) + "\n");
    };
    exchange->Post([exchange, started, reply, &api] {
      const auto call = CallUnary<Response>(*api.router(), exchange, started->job.method,
                                            started->job.request, reply);
      exchange->SetCallbacks([] {}, [call] { call->Cancel(); });
    });
    return Status();
  });
}

void Tokenize(const HttpApi& api, const Exchange& exchange) {
  RunText(api, exchange, ToTokenizeJob);
}
void Detokenize(const HttpApi& api, const Exchange& exchange) {
  RunText(api, exchange, ToDetokenizeJob);
}

void Complete(const HttpApi& api, const Exchange& exchange) {
  api.RunBody(exchange, [exchange, &api](const Json& body, const chat::HoldMemory&) {
    return api.RunJob(exchange, ToCompletionJob(body, &api.model()), NewCompletionForm);
  });
}

void Chat(const HttpApi& api, const Exchange& exchange) {
  api.RunChat(exchange, [exchange, &api](const Json& body, const chat::HoldMemory& hold) {
    return api.RunJob(exchange, ToChatJob(body, api.model(), hold), NewChatForm);
  });
}

void Respond(const HttpApi& api, const Exchange& exchange) {
  api.RunChat(exchange, [exchange, &api](const Json& body, const chat::HoldMemory& hold) -> Status {
    PS_ASSIGN_OR_RETURN(ResponseJob job, ToResponseJob(body, api.model(), hold));
    PS_RETURN_IF_ERROR(api.CheckModel(job.job.options.model));
    std::string input;
    if (job.store && api.texts()->stats().limit > 0) {
      PS_RETURN_IF_ERROR(hold(ParsedJsonBytes(exchange->request().body)));
      // Unlike the id of the request, no client chooses this name again.
      input = InputItems(body.at("input"), NewRequestId().substr(3));
    }
    const auto run = std::make_shared<ResponseRun>(exchange, std::move(job), std::move(input), api);
    exchange->Post([run] { run->Start(); });
    return Status();
  });
}

void Stored(const HttpApi& api, const Exchange& exchange) {
  const HttpRequest& request = exchange->request();
  std::string id = request.path.substr(kResponses.size() + 1);
  if (request.method == "DELETE") return DeleteResponse(exchange, id, api);
  const bool items = id.ends_with(kItems);
  if (items) id.resize(id.size() - kItems.size());
  api.RunOnStore(exchange, [exchange, id, items, &api](const chat::HoldMemory& hold) {
    const auto answer = items ? ListInputItems : RetrieveResponse;
    return answer(exchange.get(), id, hold, api);
  });
}

struct Route {
  std::string_view path;    // with a slash at its end: the paths below it
  std::string_view method;  // "GET"
  void (*answer)(const HttpApi& api, const Exchange& exchange);
};
constexpr Route kRoutes[] = {
    {"/v1/models", "GET", Models},
    {"/v1/models/", "GET", Models},
    {"/tokenizer_info", "GET", TokenizerInfo},
    {"/v1/completions", "POST", Complete},
    {"/v1/chat/completions", "POST", Chat},
    {"/v1/responses", "POST", Respond},
    {"/v1/responses/", "GET, DELETE", Stored},
    {"/tokenize", "POST", Tokenize},
    {"/detokenize", "POST", Detokenize},
};

}  // namespace

bool HandleOpenAi(const HttpApi& api, const Exchange& exchange) {
  const std::string& path = exchange->request().path;
  for (const Route& route : kRoutes) {
    if (route.path.ends_with('/') ? !path.starts_with(route.path) : path != route.path) continue;
    const std::string_view method = path.ends_with(kItems) ? "GET" : route.method;
    if (api.Admit(exchange.get(), method)) route.answer(api, exchange);
    return true;
  }
  return false;
}

}  // namespace polysketch
