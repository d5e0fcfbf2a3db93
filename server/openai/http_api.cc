#include "server/openai/http_api.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/logging.h"
#include "server/http/http_errors.h"
#include "server/net/peer.h"

namespace polysketch {
namespace {

// The memory of what becomes of a body, in that of its JSON: the JSON, and messages with its strings,
// whose arrays take as much.
constexpr int64_t kValuesOfBody = 2;

// Runs `work`. An exception of a library ends the request, not the process.
void RunOrReply(HttpExchange* exchange, const std::function<void()>& work) {
  try {
    work();
  } catch (const nlohmann::json::exception& error) {
    LogError("request_failed", {{"path", exchange->request().path}, {"error", error.what()}});
    ReplyError(exchange, Status(Code::kInternal, "the server failed to read the request"));
  }
}

}  // namespace

bool HttpApi::Admit(HttpExchange* exchange, std::string_view method) const {
  if (!CheckMethod(exchange, method)) return false;
  Status status = method == "POST" ? CheckApiBody(exchange->request()) : Status();
  if (status.ok() && service_->draining.load())
    status = Unavailable("the server is draining").WithReason(Reason::kDraining);
  if (status.ok() && service_->model.load() == nullptr)
    status = Unavailable("the server is loading its model").WithReason(Reason::kLoading);
  if (!status.ok()) ReplyError(exchange, status);
  return status.ok();
}

void HttpApi::Run(const Exchange& exchange, const std::function<void()>& work) const {
  if (exchange->request().body.size() <= kInlineRequestBytes)
    return RunOrReply(exchange.get(), work);
  RunInPool(exchange, 0, [work](const chat::HoldMemory&) { work(); });
}

void HttpApi::RunInPool(const Exchange& exchange, int64_t per_byte,
                        const std::function<void(const chat::HoldMemory& hold)>& work) const {
  const auto held_work = [exchange, per_byte, work] {
    HeldMemory parsed = exchange->NewMemory(RequestPhase::kRequest);
    const std::string& body = exchange->request().body;
    const Status held =
        parsed.Hold(kValuesOfBody * ParsedJsonBytes(body) + per_byte * std::ssize(body));
    if (!held.ok()) return ReplyError(exchange.get(), held);
    RunOrReply(exchange.get(),
               [&] { work([&parsed](int64_t bytes) { return parsed.Hold(bytes); }); });
  };
  const HttpRequest& request = exchange->request();
  TokenizerPool* const pool = service_->tokenizers;
  const TokenizerPool::Ticket ticket =
      pool->Post(OfConnection(request.principal, request.peer),
                 static_cast<int64_t>(request.body.size()), held_work);
  exchange->SetCallbacks([] {}, [pool, ticket] { pool->Drop(ticket); });
}

void HttpApi::RunJob(const Exchange& exchange, Result<CompletionJob> job, FormMaker make_form,
                     CompletionRun::Hooks hooks) const {
  if (!job.ok()) return ReplyError(exchange.get(), job.status());
  if (!CheckModel(exchange.get(), job->options.model)) return;
  AnswerHeader header = HeaderOf(*exchange);
  if (!job->options.request_id.empty()) header.request_id = job->options.request_id;
  std::unique_ptr<AnswerForm> form = make_form(job->options, std::move(header));
  const auto run = std::make_shared<CompletionRun>(exchange, *std::move(job), std::move(form),
                                                   model().rules.tokenizer, std::move(hooks));
  exchange->Post([run, this] { run->Start(service_); });
}

std::string HttpApi::ModelName() const {
  return model_name_.empty() ? model().description.name() : model_name_;
}

bool HttpApi::CheckModel(HttpExchange* exchange, const std::string& model) const {
  const std::string served = ModelName();
  if (model.empty() || model == served) return true;
  ReplyError(exchange, NotFound("model: expected \"", served, "\", found \"", model, "\""));
  return false;
}

AnswerHeader HttpApi::HeaderOf(const HttpExchange& exchange) const {
  return {.request_id = std::string(exchange.request().Header(kRequestIdHeader)),
          .model = ModelName(),
          .created = UnixSeconds()};
}

}  // namespace polysketch
