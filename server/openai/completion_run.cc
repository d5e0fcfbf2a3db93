#include "server/openai/completion_run.h"

#include <chrono>
#include <utility>

#include "server/convert/wire.h"
#include "server/http/http_errors.h"
#include "server/http/json_text.h"

namespace polysketch {
namespace {

constexpr std::string_view kSampling = "sampling.";
constexpr char kEventStream[] = "text/event-stream; charset=utf-8";

std::string_view FinishReasonText(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_MIGRATED:
      return "migrated";
    default:
      return "stop";
  }
}

}  // namespace

int64_t UnixSeconds() {
  using std::chrono::system_clock;
  return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now().time_since_epoch())
      .count();
}

CompletionRun::CompletionRun(std::shared_ptr<HttpExchange> exchange, CompletionJob job,
                             std::string model, const Tokenizer* tokenizer)
    : exchange_(std::move(exchange)),
      job_(std::move(job)),
      model_(std::move(model)),
      tokenizer_(tokenizer),
      created_(UnixSeconds()),
      choices_(job_.requests.size() * static_cast<size_t>(job_.options.choices)),
      running_(job_.requests.size()) {}

void CompletionRun::Start(const Router& router) {
  for (size_t prompt = 0; prompt < job_.requests.size(); ++prompt) {
    HttpCall::Callbacks callbacks;
    callbacks.on_message = [self = shared_from_this(), prompt](const grpc::ByteBuffer& message) {
      self->OnMessage(prompt, message);
    };
    callbacks.on_finish = [self = shared_from_this()](const Status& status) {
      self->OnFinish(status);
    };
    calls_.push_back(HttpCall::Start(router, exchange_, "Complete", job_.requests[prompt],
                                     std::move(callbacks)));
  }
  exchange_->SetCallbacks(
      [self = shared_from_this()] {
        for (const auto& call : self->calls_) call->OnSent();
      },
      [self = shared_from_this()] {
        for (const auto& call : self->calls_) call->Cancel();
      });
}

void CompletionRun::CancelAll() {
  exchange_->Post([self = shared_from_this()] {
    for (const auto& call : self->calls_) call->Cancel();
  });
}

void CompletionRun::OnMessage(size_t prompt, const grpc::ByteBuffer& message) {
  v1::CompleteResponse response;
  const Status parsed = ParseMessage(message, &response);
  std::lock_guard lock(mutex_);
  if (ended_) return;
  if (!parsed.ok()) return Fail(Internal(parsed.message()));
  if (response.has_delta()) {
    OnDelta(prompt, response.delta());
  } else if (response.has_choice()) {
    const v1::ChoiceFinish& choice = response.choice();
    EndChoice(prompt, choice.choice(), choice.text(), choice.reason(), choice.matched_stop());
  } else if (response.has_finish()) {
    OnFinishMessage(prompt, response.finish());
  }
}

void CompletionRun::OnFinish(const Status& status) {
  std::lock_guard lock(mutex_);
  --running_;
  if (ended_) return;
  if (!status.ok()) return Fail(status);
  if (running_ == 0) Complete();
}

// A resumed completion has the choices of its first request.
CompletionRun::Choice* CompletionRun::ChoiceOf(size_t prompt, int choice) {
  const size_t index =
      prompt * static_cast<size_t>(job_.options.choices) + static_cast<size_t>(choice);
  if (index >= choices_.size()) choices_.resize(index + 1);
  return &choices_[index];
}

void CompletionRun::OnDelta(size_t prompt, const v1::Delta& delta) {
  Choice* choice = ChoiceOf(prompt, delta.choice());
  choice->text += delta.text();
  if (job_.options.logprobs) {
    if (!choice->logprobs.has_value()) choice->logprobs.emplace(tokenizer_);
    choice->logprobs->Add(delta);
  }
  // The prompt is returned once, and belongs to each choice.
  if (delta.echoed()) {
    for (int other = 1; other < job_.options.choices; ++other) {
      ChoiceOf(prompt, other)->text += delta.text();
      ChoiceOf(prompt, other)->logprobs = ChoiceOf(prompt, 0)->logprobs;
    }
  } else if (job_.options.stream) {
    SendChoice(static_cast<size_t>(choice - choices_.data()), choice);
  }
}

void CompletionRun::EndChoice(size_t prompt, int index, const std::string& text,
                              v1::FinishReason reason, const std::string& matched_stop) {
  Choice* choice = ChoiceOf(prompt, index);
  choice->text += text;
  choice->finish_reason = FinishReasonText(reason);
  choice->matched_stop = matched_stop;
  if (job_.options.stream) SendChoice(static_cast<size_t>(choice - choices_.data()), choice);
}

void CompletionRun::OnFinishMessage(size_t prompt, const v1::Finish& finish) {
  usage_.set_prompt_tokens(usage_.prompt_tokens() + finish.usage().prompt_tokens());
  usage_.set_completion_tokens(usage_.completion_tokens() + finish.usage().completion_tokens());
  usage_.set_cached_tokens(usage_.cached_tokens() + finish.usage().cached_tokens());
  if (finish.has_session()) session_ = finish.session();
  if (!finish.resume_token().empty()) resume_token_ = finish.resume_token();
  if (ChoiceOf(prompt, 0)->finish_reason.empty())  // n = 1: no message about the choice
    EndChoice(prompt, 0, finish.text(), finish.reason(), finish.matched_stop());
}

void CompletionRun::Fail(const Status& cause) {
  ended_ = true;
  CancelAll();
  // The parameters of `sampling` are fields of the request here.
  const bool nested = cause.message().starts_with(kSampling);
  const Status status =
      nested ? Status(cause.code(), cause.message().substr(kSampling.size())) : cause;
  if (!started_) return ReplyError(exchange_.get(), status);
  exchange_->Send("data: " + ErrorBody(status) + "\ndata: [DONE]\n\n");
  exchange_->EndStream();
}

void CompletionRun::Complete() {
  ended_ = true;
  if (!job_.options.stream) {
    Json body = Envelope();
    for (size_t i = 0; i < choices_.size(); ++i)
      body["choices"].push_back(ChoiceJson(i, &choices_[i]));
    body["usage"] = UsageJson();
    Extend(&body);
    return exchange_->Reply(200, kJsonType, JsonText(body));
  }
  if (job_.options.include_usage) {
    Json event = Envelope();
    event["usage"] = UsageJson();
    SendEvent(event);
  }
  exchange_->Send("data: [DONE]\n\n");
  exchange_->EndStream();
}

void CompletionRun::SendChoice(size_t index, Choice* choice) {
  Json event = Envelope();
  event["choices"].push_back(ChoiceJson(index, choice));
  if (job_.options.include_usage) event["usage"] = nullptr;
  if (!choice->finish_reason.empty()) Extend(&event);
  choice->text.clear();
  SendEvent(event);
}

void CompletionRun::SendEvent(const Json& event) {
  if (!std::exchange(started_, true)) exchange_->StartStream(kEventStream);
  exchange_->Send("data: " + JsonText(event) + "\n\n");
}

CompletionRun::Json CompletionRun::ChoiceJson(size_t index, Choice* choice) const {
  Json json;
  json["index"] = index;
  json["text"] = choice->text;
  json["logprobs"] = choice->logprobs.has_value() ? choice->logprobs->Take() : Json();
  json["finish_reason"] = choice->finish_reason.empty() ? Json() : Json(choice->finish_reason);
  if (!choice->matched_stop.empty()) json["stop_reason"] = choice->matched_stop;
  return json;
}

CompletionRun::Json CompletionRun::Envelope() const {
  Json json;
  json["id"] = StrCat("cmpl-", exchange_->request().Header(kRequestIdHeader));
  json["object"] = "text_completion";
  json["created"] = created_;
  json["model"] = model_;
  json["choices"] = Json::array();
  return json;
}

CompletionRun::Json CompletionRun::UsageJson() const {
  Json usage;
  usage["prompt_tokens"] = usage_.prompt_tokens();
  usage["completion_tokens"] = usage_.completion_tokens();
  usage["total_tokens"] = usage_.prompt_tokens() + usage_.completion_tokens();
  usage["prompt_tokens_details"] = {{"cached_tokens", usage_.cached_tokens()}};
  return usage;
}

// Fields of this server: the session after the completion, and how to continue a migrated one.
void CompletionRun::Extend(Json* json) const {
  if (session_.has_value())
    (*json)["session"] = {{"id", session_->session()}, {"tokens", session_->tokens()}};
  if (!resume_token_.empty()) (*json)["resume_token"] = resume_token_;
}

}  // namespace polysketch
