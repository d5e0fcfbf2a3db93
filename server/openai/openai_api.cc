#include "server/openai/openai_api.h"

#include <algorithm>
#include <functional>
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
#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

constexpr std::string_view kModels = "/v1/models";
constexpr std::string_view kResponses = "/v1/responses";
constexpr std::string_view kItems = "/input_items";

// Memory of a message as JSON, and as the text of that, in bytes of the message.
constexpr int64_t kJsonOfMessage = 12;

}  // namespace

OpenAiApi::OpenAiApi(const Router* router, ServiceContext* service, std::string model_name,
                     std::unique_ptr<StoredResponses> texts)
    : HttpApi(router, service, std::move(model_name)),
      created_(UnixSeconds()),
      texts_(std::move(texts)) {}

OpenAiApi::Route OpenAiApi::RouteOf(const std::string& path) {
  if (path == kModels || path.starts_with(StrCat(kModels, "/"))) return {"GET", &OpenAiApi::Models};
  if (path == "/tokenizer_info") return {"GET", &OpenAiApi::TokenizerInfo};
  if (path == "/v1/completions") return {"POST", &OpenAiApi::Complete};
  if (path == "/v1/chat/completions") return {"POST", &OpenAiApi::Chat};
  if (path == kResponses) return {"POST", &OpenAiApi::Respond};
  if (path.starts_with(StrCat(kResponses, "/")))
    return {path.ends_with(kItems) ? "GET" : "GET, DELETE", &OpenAiApi::Stored};
  if (path == "/tokenize") return {"POST", &OpenAiApi::Text<ToTokenizeJob>};
  if (path == "/detokenize") return {"POST", &OpenAiApi::Text<ToDetokenizeJob>};
  return {"", nullptr};
}

bool OpenAiApi::Handle(const Exchange& exchange) {
  const auto [method, answer] = RouteOf(exchange->request().path);
  if (answer == nullptr) return false;
  if (Admit(exchange.get(), method)) (this->*answer)(exchange);
  return true;
}

void OpenAiApi::Models(const Exchange& exchange) {
  const std::string& path = exchange->request().path;
  const std::string name = path.substr(std::min(path.size(), kModels.size() + 1));
  if (const Status found = CheckModel(name); !found.ok()) return ReplyError(exchange.get(), found);
  nlohmann::ordered_json json = ModelJson(ModelName(), created_, model());
  if (name.empty()) json = {{"object", "list"}, {"data", nlohmann::ordered_json::array({json})}};
  exchange->Reply(200, kJsonType, JsonText(json) + "\n");
}

void OpenAiApi::TokenizerInfo(const Exchange& exchange) {
  Result<std::string> body = TokenizerInfoJson(model());
  if (!body.ok()) return ReplyError(exchange.get(), body.status());
  exchange->Reply(200, kJsonType, *std::move(body));
}

template <Result<TextJob> (*to_job)(const std::string& body, const ServedModel& model)>
void OpenAiApi::Text(const Exchange& exchange) {
  Run(exchange, [exchange, this](const chat::HoldMemory&) -> Status {
    PS_ASSIGN_OR_RETURN(TextJob parsed, to_job(exchange->request().body, model()));
    const auto job = std::make_shared<TextJob>(std::move(parsed));
    HttpCall::Callbacks callbacks;
    callbacks.on_message = [exchange, job](const grpc::ByteBuffer& response) {
      HeldMemory json = exchange->NewMemory(RequestPhase::kReply);
      const Status held = json.Hold(kJsonOfMessage * static_cast<int64_t>(response.Length()));
      if (!held.ok()) return ReplyError(exchange.get(), held);
      Result<std::string> body = job->body(response);
      if (!body.ok()) return ReplyError(exchange.get(), Internal(body.status().message()));
      exchange->Reply(200, kJsonType, *std::move(body));
    };
    callbacks.on_finish = [exchange](const Status& status) {
      if (!status.ok()) ReplyError(exchange.get(), Renamed(status, {{"text:", "prompt:"}}));
    };
    exchange->Post([exchange, job, callbacks, this] {
      const auto call = HttpCall::Start(*router(), exchange, job->method, *job->request, callbacks);
      exchange->SetCallbacks([] {}, [call] { call->Cancel(); });
    });
    return Status();
  });
}

void OpenAiApi::Complete(const Exchange& exchange) {
  RunBody(exchange, [exchange, this](const auto& body, const chat::HoldMemory&) {
    return RunJob(exchange, ToCompletionJob(body, &model()), NewCompletionForm);
  });
}

void OpenAiApi::Chat(const Exchange& exchange) {
  RunChat(exchange, [exchange, this](const auto& body, const chat::HoldMemory& hold) {
    return RunJob(exchange, ToChatJob(body, model(), hold), NewChatForm);
  });
}

void OpenAiApi::Respond(const Exchange& exchange) {
  RunChat(exchange, [exchange, this](const auto& body, const chat::HoldMemory& hold) -> Status {
    PS_ASSIGN_OR_RETURN(ResponseJob job, ToResponseJob(body, model(), hold));
    PS_RETURN_IF_ERROR(CheckModel(job.job.options.model));
    std::string input;
    if (job.store && texts_->stats().limit > 0) {
      PS_RETURN_IF_ERROR(hold(ParsedJsonBytes(exchange->request().body)));
      // Unlike the id of the request, no client chooses this name again.
      input = InputItems(body.at("input"), NewRequestId().substr(3));
    }
    const auto run =
        std::make_shared<ResponseRun>(exchange, std::move(job), std::move(input),
                                      HeaderOf(*exchange), router(), service(), texts_.get());
    exchange->Post([run] { run->Start(); });
    return Status();
  });
}

void OpenAiApi::Stored(const Exchange& exchange) {
  const HttpRequest& request = exchange->request();
  std::string id = request.path.substr(kResponses.size() + 1);
  if (request.method == "DELETE") return DeleteResponse(exchange, id, router(), texts_.get());
  if (!id.ends_with(kItems)) {
    const Status status = RetrieveResponse(exchange.get(), id, texts_.get());
    return status.ok() ? void() : ReplyError(exchange.get(), status);
  }
  id.resize(id.size() - kItems.size());
  RunInPool(exchange, 0, [exchange, id, this](const chat::HoldMemory& hold) {
    return ListInputItems(exchange.get(), id, hold, texts_.get());
  });
}

}  // namespace polysketch
