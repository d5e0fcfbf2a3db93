#include "server/openai/openai_api.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/http/http_call.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"
#include "server/net/peer.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "server/openai/completion_run.h"
#include "server/openai/response_run.h"
#include "server/openai/responses_request.h"
#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

constexpr std::string_view kModels = "/v1/models";
constexpr std::string_view kResponses = "/v1/responses";

// Memory of a message as JSON, and as the text of that, in bytes of the message.
constexpr int64_t kJsonOfMessage = 12;

// The memory of what becomes of a body, in that of its JSON: the JSON, and messages with its strings,
// whose arrays take as much.
constexpr int64_t kValuesOfBody = 2;
// Bytes for each byte of a chat: its messages and the text of the prompt, beside what the template
// makes, and ids, of which each byte may have one.
constexpr int64_t kChatPerByte = 20;

void ReplyModelNotFound(HttpExchange* exchange, const std::string& found,
                        const std::string& served) {
  ReplyError(exchange, NotFound("model: expected \"", served, "\", found \"", found, "\""));
}

}  // namespace

OpenAiApi::OpenAiApi(const Router* router, ServiceContext* service, std::string model_name)
    : router_(router),
      service_(service),
      model_name_(std::move(model_name)),
      created_(UnixSeconds()) {}

std::string OpenAiApi::ModelName(const ServedModel& model) const {
  return model_name_.empty() ? model.description.name() : model_name_;
}

OpenAiApi::Route OpenAiApi::RouteOf(const std::string& path) {
  if (path == kModels || path.starts_with(StrCat(kModels, "/"))) return {"GET", &OpenAiApi::Models};
  if (path == "/tokenizer_info") return {"GET", &OpenAiApi::TokenizerInfo};
  if (path == "/v1/completions") return {"POST", &OpenAiApi::Complete};
  if (path == "/v1/chat/completions") return {"POST", &OpenAiApi::Chat};
  if (path == kResponses) return {"POST", &OpenAiApi::Respond};
  if (path.starts_with(StrCat(kResponses, "/"))) return {"DELETE", &OpenAiApi::DeleteStored};
  if (path == "/tokenize") return {"POST", &OpenAiApi::Text<ToTokenizeJob>};
  if (path == "/detokenize") return {"POST", &OpenAiApi::Text<ToDetokenizeJob>};
  return {"", nullptr};
}

bool OpenAiApi::Handle(const Exchange& exchange) {
  const HttpRequest& request = exchange->request();
  const auto [allowed, answer] = RouteOf(request.path);
  if (answer == nullptr) return false;
  if (!CheckMethod(exchange.get(), allowed)) return true;
  Status status = allowed == "POST" ? CheckJsonType(request) : Status();
  if (status.ok() && service_->draining.load())
    status = Unavailable("the server is draining").WithReason(Reason::kDraining);
  if (status.ok() && service_->model.load() == nullptr)
    status = Unavailable("the server is loading its model").WithReason(Reason::kLoading);
  status.ok() ? (this->*answer)(exchange) : ReplyError(exchange.get(), status);
  return true;
}

void OpenAiApi::Models(const Exchange& exchange) {
  const ServedModel& model = *service_->model.load();
  const std::string name = ModelName(model);
  const std::string& path = exchange->request().path;
  nlohmann::ordered_json json = ModelJson(name, created_, model);
  if (path == kModels) json = {{"object", "list"}, {"data", nlohmann::ordered_json::array({json})}};
  if (path == kModels || path == StrCat(kModels, "/", name))
    return exchange->Reply(200, kJsonType, JsonText(json) + "\n");
  ReplyModelNotFound(exchange.get(), path.substr(std::min(path.size(), kModels.size() + 1)), name);
}

void OpenAiApi::Run(const Exchange& exchange, const std::function<void()>& work) {
  if (exchange->request().body.size() <= kInlineRequestBytes) return work();
  RunInPool(exchange, 0, [work](const chat::HoldMemory&) { work(); });
}

void OpenAiApi::RunInPool(const Exchange& exchange, int64_t per_byte,
                          const std::function<void(const chat::HoldMemory& hold)>& work) {
  const auto held_work = [exchange, per_byte, work] {
    HeldMemory parsed = exchange->NewMemory(RequestPhase::kRequest);
    const std::string& body = exchange->request().body;
    const Status held =
        parsed.Hold(kValuesOfBody * ParsedJsonBytes(body) + per_byte * std::ssize(body));
    if (!held.ok()) return ReplyError(exchange.get(), held);
    work([&parsed](int64_t bytes) { return parsed.Hold(bytes); });
  };
  const HttpRequest& request = exchange->request();
  TokenizerPool* const pool = service_->tokenizers;
  const TokenizerPool::Ticket ticket =
      pool->Post(OfConnection(request.principal, request.peer),
                 static_cast<int64_t>(request.body.size()), held_work);
  exchange->SetCallbacks([] {}, [pool, ticket] { pool->Drop(ticket); });
}

void OpenAiApi::TokenizerInfo(const Exchange& exchange) {
  Result<std::string> body = TokenizerInfoJson(*service_->model.load());
  if (!body.ok()) return ReplyError(exchange.get(), body.status());
  exchange->Reply(200, kJsonType, *std::move(body));
}

template <Result<TextJob> (*to_job)(const std::string& body, const ServedModel& model)>
void OpenAiApi::Text(const Exchange& exchange) {
  Run(exchange, [exchange, this] {
    Result<TextJob> parsed = to_job(exchange->request().body, *service_->model.load());
    if (!parsed.ok()) return ReplyError(exchange.get(), parsed.status());
    const auto job = std::make_shared<TextJob>(*std::move(parsed));
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
      if (!status.ok()) ReplyError(exchange.get(), RenameTextField(status));
    };
    exchange->Post([exchange, job, callbacks, this] {
      const auto call = HttpCall::Start(*router_, exchange, job->method, *job->request, callbacks);
      exchange->SetCallbacks([] {}, [call] { call->Cancel(); });
    });
  });
}

bool OpenAiApi::CheckModel(HttpExchange* exchange, const std::string& model,
                           const std::string& name) {
  if (model.empty() || model == name) return true;
  ReplyModelNotFound(exchange, model, name);
  return false;
}

AnswerHeader OpenAiApi::HeaderOf(const HttpExchange& exchange, const ServedModel& model) const {
  return {.request_id = std::string(exchange.request().Header(kRequestIdHeader)),
          .model = ModelName(model),
          .created = UnixSeconds()};
}

void OpenAiApi::RunJob(const Exchange& exchange, Result<CompletionJob> job, FormMaker make_form) {
  if (!job.ok()) return ReplyError(exchange.get(), job.status());
  const ServedModel& model = *service_->model.load();
  const AnswerHeader header = HeaderOf(*exchange, model);
  if (!CheckModel(exchange.get(), job->options.model, header.model)) return;
  std::unique_ptr<AnswerForm> form = make_form(job->options, header);
  const auto run = std::make_shared<CompletionRun>(exchange, *std::move(job), std::move(form),
                                                   model.rules.tokenizer);
  exchange->Post([run, this] { run->Start(*router_); });
}

void OpenAiApi::Complete(const Exchange& exchange) {
  Run(exchange, [exchange, this] {
    Result<nlohmann::json> body = ParseCompletionBody(exchange->request().body);
    if (!body.ok()) return ReplyError(exchange.get(), body.status());
    RunJob(exchange, ToCompletionJob(*body), NewCompletionForm);
  });
}

// A template takes time: it never runs on the thread of the HTTP server.
void OpenAiApi::Chat(const Exchange& exchange) {
  RunInPool(exchange, kChatPerByte, [exchange, this](const chat::HoldMemory& hold) {
    Result<nlohmann::json> body = ParseCompletionBody(exchange->request().body);
    if (!body.ok()) return ReplyError(exchange.get(), body.status());
    RunJob(exchange, ToChatJob(*body, *service_->model.load(), hold), NewChatForm);
  });
}

void OpenAiApi::Respond(const Exchange& exchange) {
  RunInPool(exchange, kChatPerByte, [exchange, this](const chat::HoldMemory& hold) {
    Result<nlohmann::json> body = ParseCompletionBody(exchange->request().body);
    if (!body.ok()) return ReplyError(exchange.get(), body.status());
    const ServedModel& model = *service_->model.load();
    Result<ResponseJob> job = ToResponseJob(*body, model, hold);
    if (!job.ok()) return ReplyError(exchange.get(), job.status());
    const AnswerHeader header = HeaderOf(*exchange, model);
    if (!CheckModel(exchange.get(), job->job.options.model, header.model)) return;
    const auto run = std::make_shared<ResponseRun>(exchange, *std::move(job), header,
                                                   model.rules.tokenizer, router_);
    exchange->Post([run] { run->Start(); });
  });
}

void OpenAiApi::DeleteStored(const Exchange& exchange) {
  DeleteResponse(exchange, exchange->request().path.substr(kResponses.size() + 1), router_);
}

}  // namespace polysketch
