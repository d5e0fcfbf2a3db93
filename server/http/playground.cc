#include "server/http/playground.h"

#include <google/protobuf/util/json_util.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "base/logging.h"
#include "server/convert/request_id.h"
#include "server/convert/status_map.h"

namespace polysketch {
namespace {

// Maximum number of completions at the same time. The page is for people; programs use gRPC.
constexpr int kMaxAtOnce = 4;
constexpr size_t kMaxBodyBytes = 1 << 20;
// Without tokens, a blank line is sent this often to find out whether the client is still
// connected.
constexpr std::chrono::milliseconds kHeartbeat{500};

std::string ErrorJson(const Status& status) {
  const nlohmann::json json = {
      {"error", {{"code", std::string(CodeName(status.code()))}, {"message", status.message()}}}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

int HttpStatus(Code code) {
  if (code == Code::kPermissionDenied) return 403;
  if (code == Code::kResourceExhausted) return 429;
  return code == Code::kUnavailable ? 503 : 400;
}

void ReplyError(HttpExchange* exchange, const Status& status) {
  exchange->Reply(HttpStatus(status.code()), "application/json", ErrorJson(status));
}

std::string Line(const v1::CompleteResponse& response) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string line;
  if (!google::protobuf::util::MessageToJsonString(response, &line, options).ok()) {
    return ErrorJson(Internal("the message has no JSON form"));
  }
  return line + "\n";
}

}  // namespace

// Keeps a page of another site from using the server through a browser: such a page can neither
// send JSON without a preflight request, nor set this server's address as its origin.
Status Playground::Check(const HttpExchange& exchange) const {
  if (!exchange.Header("Content-Type").starts_with("application/json")) {
    return InvalidArgument("Content-Type: expected application/json, found \"",
                           exchange.Header("Content-Type"), "\"");
  }
  const std::string_view origin = exchange.Header("Origin");
  if (!origin.empty() && origin != StrCat("http://", exchange.Header("Host")) &&
      origin != StrCat("https://", exchange.Header("Host"))) {
    return Status(Code::kPermissionDenied, "Origin: expected the server's own page");
  }
  if (stopped_.load() || service_->draining.load()) return Unavailable("the server is draining");
  if (service_->model.load() == nullptr) return Unavailable("the server is loading its model");
  return Status();
}

Result<GenerateRequest> Playground::Read(HttpExchange* exchange, bool* with_logprobs) const {
  PS_RETURN_IF_ERROR(Check(*exchange));
  PS_ASSIGN_OR_RETURN(const std::string body, exchange->ReadBody(kMaxBodyBytes));
  v1::CompleteRequest message;
  if (const auto parsed = google::protobuf::util::JsonStringToMessage(body, &message);
      !parsed.ok()) {
    return InvalidArgument("the body: expected the JSON form of CompleteRequest: ",
                           std::string(parsed.message()));
  }
  if (!message.session().empty() || !message.resume_token().empty() || message.return_state()) {
    return InvalidArgument(
        "session, resume_token, return_state: expected none over HTTP; use gRPC");
  }
  const RequestRules& rules = service_->model.load()->rules;
  GenerateRequest request;
  PS_ASSIGN_OR_RETURN(request.params, ToGenerateParams(message, rules));
  PS_ASSIGN_OR_RETURN(request.prompt, ToPrompt(message.prompt(), rules));
  request.info.id = NewRequestId();
  *with_logprobs = request.params.logprobs.has_value();
  return request;
}

void Playground::Complete(HttpExchange* exchange) {
  if (running_.fetch_add(1) >= kMaxAtOnce) {
    ReplyError(exchange, ResourceExhausted("the page runs ", kMaxAtOnce,
                                           " completions at once; try again later"));
  } else {
    Serve(exchange);
  }
  running_.fetch_sub(1);
}

void Playground::Stop() {
  stopped_.store(true);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (running_.load() > 0 && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Playground::Serve(HttpExchange* exchange) {
  bool with_logprobs = false;
  Result<GenerateRequest> request = Read(exchange, &with_logprobs);
  if (!request.ok()) return ReplyError(exchange, request.status());
  const std::string request_id = request->info.id;

  const auto ready = std::make_shared<Semaphore>(0);
  const auto events = std::make_shared<EventStream>(service_->stream_buffer);
  events->SetOnReady([ready] { ready->release(); });
  const Result<RequestId> id = service_->model.load()->engine->Submit(*std::move(request), events);
  if (!id.ok()) return ReplyError(exchange, id.status());

  exchange->StartStream("application/x-ndjson");
  const FinishEvent finish = Stream(exchange, *id, with_logprobs, events.get(), ready.get());
  const Status status = FinishStatus(finish);
  v1::CompleteResponse last;
  if (status.ok()) ToProto(finish, last.mutable_finish());
  exchange->Send(status.ok() ? Line(last) : ErrorJson(status));
  exchange->EndStream();
  LogInfo("playground_done", {{"id", request_id},
                              {"status", CodeName(status.code())},
                              {"prompt_tokens", finish.usage.prompt_tokens},
                              {"completion_tokens", finish.usage.completion_tokens}});
}

FinishEvent Playground::Stream(HttpExchange* exchange, RequestId id, bool with_logprobs,
                               EventStream* events, Semaphore* ready) {
  const ServedModel& model = *service_->model.load();
  bool cancelled = false;
  while (true) {
    v1::CompleteResponse response;
    Event event;
    std::optional<FinishEvent> finish;
    while (!finish.has_value() && events->TryPop(&event)) {
      if (const auto* token = std::get_if<TokenEvent>(&event)) {
        AppendToken(*token, with_logprobs, model.rules.tokenizer, response.mutable_delta());
      } else if (auto* last = std::get_if<FinishEvent>(&event)) {
        finish = std::move(*last);
      }
    }
    const bool connected = exchange->Send(response.has_delta() ? Line(response) : "\n");
    if (finish.has_value()) return *std::move(finish);
    if ((!connected || stopped_.load()) && !std::exchange(cancelled, true))
      model.engine->Cancel(id);
    if (ready->try_acquire_for(kHeartbeat)) {
      while (ready->try_acquire()) {  // all announced events are read below at once
      }
    }
  }
}

}  // namespace polysketch
