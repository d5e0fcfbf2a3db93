#include "server/openai/openai_api.h"

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/http/http_errors.h"
#include "server/openai/completion_request.h"
#include "server/openai/completion_run.h"
#include "server/openai/text_api.h"

namespace polysketch {
namespace {

constexpr std::string_view kModels = "/v1/models";

// Keeps a page of another site from using the server through a browser: such a page cannot send JSON
// without a preflight request, which this server refuses.
Status CheckContentType(const HttpRequest& request) {
  const std::string_view type = request.Header("Content-Type");
  if (EqualsIgnoringCase(type.substr(0, type.find(';')), kJsonType)) return Status();
  return InvalidArgument("Content-Type: expected application/json, found \"", type, "\"");
}

void ReplyModelNotFound(HttpExchange* exchange, const std::string& found,
                        const std::string& served) {
  exchange->Reply(
      404, kJsonType,
      ErrorBody(404, StrCat("model: expected \"", served, "\", found \"", found, "\""), "model"));
}

}  // namespace

OpenAiApi::OpenAiApi(const Router* router, ServiceContext* service, std::string model_name)
    : router_(router),
      service_(service),
      model_name_(std::move(model_name)),
      created_(std::chrono::duration_cast<std::chrono::seconds>(
                   std::chrono::system_clock::now().time_since_epoch())
                   .count()) {}

std::string OpenAiApi::ModelName(const ServedModel& model) const {
  return model_name_.empty() ? model.description.name() : model_name_;
}

bool OpenAiApi::Handle(const Exchange& exchange) {
  const HttpRequest& request = exchange->request();
  const bool is_get = request.path.starts_with(kModels) || request.path == "/tokenizer_info";
  std::function<void(const ServedModel&)> answer;
  if (request.path.starts_with(kModels)) {
    answer = [&](const ServedModel& model) { ReplyModels(exchange.get(), model); };
  } else if (request.path == "/tokenizer_info") {
    answer = [&](const ServedModel&) {
      Text(exchange,
           [](const std::string&, const ServedModel& model) { return TokenizerInfoJson(model); });
    };
  } else if (request.path == "/v1/completions") {
    answer = [&](const ServedModel&) { Complete(exchange); };
  } else if (request.path == "/tokenize") {
    answer = [&](const ServedModel&) { Text(exchange, TokenizeJson); };
  } else if (request.path == "/detokenize") {
    answer = [&](const ServedModel&) { Text(exchange, DetokenizeJson); };
  } else {
    return false;
  }
  if (request.method != (is_get ? "GET" : "POST")) {
    const std::string allowed = is_get ? "GET" : "POST";
    exchange->Reply(405, kJsonType,
                    ErrorBody(405, StrCat("expected ", allowed, ", found ", request.method)),
                    {{"Allow", allowed}});
    return true;
  }
  Status status = is_get ? Status() : CheckContentType(request);
  const ServedModel* model = service_->model.load();
  if (status.ok() && service_->draining.load()) status = Unavailable("the server is draining");
  if (status.ok() && model == nullptr) status = Unavailable("the server is loading its model");
  status.ok() ? answer(*model) : ReplyError(exchange.get(), status);
  return true;
}

void OpenAiApi::ReplyModels(HttpExchange* exchange, const ServedModel& model) const {
  const std::string name = ModelName(model);
  const std::string& path = exchange->request().path;
  const std::string models = ModelsJson(name, created_, model);
  if (path == kModels) return exchange->Reply(200, kJsonType, models);
  if (path == StrCat(kModels, "/", name)) {
    const auto entry = nlohmann::ordered_json::parse(models).at("data").at(0);
    return exchange->Reply(200, kJsonType, entry.dump() + "\n");
  }
  ReplyModelNotFound(exchange, path.substr(std::min(path.size(), kModels.size() + 1)), name);
}

void OpenAiApi::Text(const Exchange& exchange,
                     Result<std::string> (*answer)(const std::string&, const ServedModel&)) {
  const auto run = [exchange, answer, service = service_] {
    Result<std::string> body = answer(exchange->request().body, *service->model.load());
    if (!body.ok()) return ReplyError(exchange.get(), body.status());
    exchange->Reply(200, kJsonType, *std::move(body));
  };
  if (exchange->request().body.size() <= kInlineRequestBytes) return run();
  service_->tokenizers->Post(run);
}

void OpenAiApi::Complete(const Exchange& exchange) {
  const auto run = [exchange, this] {
    Result<nlohmann::json> body = ParseJsonObject(exchange->request().body);
    if (!body.ok()) return ReplyError(exchange.get(), body.status());
    Result<CompletionJob> job = ToCompletionJob(*body);
    if (!job.ok()) return ReplyError(exchange.get(), job.status());
    const ServedModel& model = *service_->model.load();
    const std::string name = ModelName(model);
    if (!job->options.model.empty() && job->options.model != name)
      return ReplyModelNotFound(exchange.get(), job->options.model, name);
    auto completion =
        std::make_shared<CompletionRun>(exchange, *std::move(job), name, model.rules.tokenizer);
    exchange->Post([completion, this] { completion->Start(*router_); });
  };
  if (exchange->request().body.size() <= kInlineRequestBytes) return run();
  service_->tokenizers->Post(run);
}

}  // namespace polysketch
