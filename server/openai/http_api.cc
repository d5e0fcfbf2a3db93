#include "server/openai/http_api.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/logging.h"
#include "server/http/http_errors.h"
#include "server/net/peer.h"
#include "server/openai/structured_output.h"

namespace polysketch {
namespace {

// The memory of what becomes of a body, in that of its JSON: the JSON, and messages with its
// strings, whose arrays take as much.
constexpr int64_t kValuesOfBody = 2;

// Runs `work`, or replies with its error. An exception of a library ends the request, not the
// process.
void RunOrReply(HttpExchange* exchange, const std::function<Status()>& work) {
  Status status;
  try {
    status = work();
  } catch (const nlohmann::json::exception& error) {
    LogError("request_failed", {{"path", exchange->request().path}, {"error", error.what()}});
    status = Status(Code::kInternal, "the server failed to read the request");
  }
  if (!status.ok()) ReplyError(exchange, status);
}

Status WithBody(const HttpExchange& exchange, const HttpApi::BodyWork& work,
                const chat::HoldMemory& hold) {
  PS_ASSIGN_OR_RETURN(const nlohmann::ordered_json body,
                      ParseCompletionBody(exchange.request().body));
  return work(body, hold);
}

}  // namespace

bool HttpApi::Admit(HttpExchange* exchange, std::string_view method) const {
  if (!CheckMethod(exchange, method)) return false;
  Status status = method == "POST" ? CheckApiBody(exchange->request()) : Status();
  if (status.ok() && service_->draining.load()) status = Draining();
  if (status.ok() && service_->model.load() == nullptr)
    status = Unavailable("the server is loading its model").WithReason(Reason::kLoading);
  if (!status.ok()) ReplyError(exchange, status);
  return status.ok();
}

void HttpApi::RunBody(const Exchange& exchange, const BodyWork& work) const {
  if (exchange->request().body.size() > kInlineRequestBytes) return RunInPool(exchange, 0, work);
  RunOrReply(exchange.get(), [&] { return WithBody(*exchange, work, nullptr); });
}

void HttpApi::RunInPool(const Exchange& exchange, int64_t per_byte, const BodyWork& work) const {
  const auto held_work = [exchange, per_byte, work]() -> Status {
    HeldMemory parsed = exchange->NewMemory(RequestPhase::kRequest);
    const std::string& body = exchange->request().body;
    PS_RETURN_IF_ERROR(
        parsed.Hold(kValuesOfBody * ParsedJsonBytes(body) + per_byte * std::ssize(body)));
    return WithBody(*exchange, work, [&parsed](int64_t bytes) { return parsed.Hold(bytes); });
  };
  const HttpRequest& request = exchange->request();
  TokenizerPool* const pool = service_->tokenizers;
  const TokenizerPool::Ticket ticket = pool->Post(
      OfConnection(request.principal, request.peer), static_cast<int64_t>(request.body.size()),
      [exchange, held_work] { RunOrReply(exchange.get(), held_work); });
  exchange->SetCallbacks([] {}, [pool, ticket] { pool->Drop(ticket); });
}

void HttpApi::RunOnStore(const Exchange& exchange, const Work& work) const {
  const auto held_work = [exchange, work]() -> Status {
    HeldMemory memory = exchange->NewMemory(RequestPhase::kRequest);
    return work([&memory](int64_t bytes) { return memory.Hold(bytes); });
  };
  service_->stores->Post([exchange, held_work] { RunOrReply(exchange.get(), held_work); },
                         exchange->request().principal);
}

Status HttpApi::RunJob(const Exchange& exchange, Result<CompletionJob> job,
                       FormMaker make_form) const {
  PS_RETURN_IF_ERROR(job.status());
  PS_RETURN_IF_ERROR(CheckModel(job->options.model));
  AnswerHeader header = HeaderOf(*exchange);
  if (!job->options.request_id.empty()) header.request_id = job->options.request_id;
  std::unique_ptr<AnswerForm> form = make_form(job->options, std::move(header));
  const auto run =
      std::make_shared<CompletionRun>(exchange, *std::move(job), std::move(form), service_);
  exchange->Post([run] { run->Start(); });
  return Status();
}

std::string HttpApi::ModelName() const {
  return model_name_.empty() ? model().description.name() : model_name_;
}

Status HttpApi::CheckModel(const std::string& model) const {
  const std::string served = ModelName();
  if (model.empty() || model == served) return Status();
  return NotFound("model: expected \"", served, "\", found \"", model, "\"");
}

AnswerHeader HttpApi::HeaderOf(const HttpExchange& exchange) const {
  return {.request_id = std::string(exchange.request().Header(kRequestIdHeader)),
          .model = ModelName(),
          .created = UnixSeconds()};
}

}  // namespace polysketch
