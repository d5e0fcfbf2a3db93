// Runs a POST /v1/completions: one Complete call for each prompt, and their responses as one
// response of OpenAI's API, whole or as server-sent events.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/http/http_call.h"
#include "server/openai/completion_request.h"
#include "server/openai/logprobs.h"

namespace polysketch {

// The time, as the API writes it: seconds since 1970.
int64_t UnixSeconds();

class CompletionRun final : public std::enable_shared_from_this<CompletionRun> {
 public:
  // `model`: the name in the response. `tokenizer` may be null.
  CompletionRun(std::shared_ptr<HttpExchange> exchange, CompletionJob job, std::string model,
                const Tokenizer* tokenizer);

  // Starts the calls. Called once, on the thread of the HTTP server.
  void Start(const Router& router);

 private:
  struct Choice {
    std::string text;  // not yet sent
    std::optional<Logprobs> logprobs;
    std::string finish_reason;  // empty: it runs
    std::string matched_stop;
  };
  using Json = nlohmann::ordered_json;

  void OnMessage(size_t prompt, const grpc::ByteBuffer& message);
  void OnFinish(const Status& status);
  // The functions below hold mutex_.
  Choice* ChoiceOf(size_t prompt, int choice);
  void OnDelta(size_t prompt, const v1::Delta& delta);
  void EndChoice(size_t prompt, int choice, const std::string& text, v1::FinishReason reason,
                 const std::string& matched_stop);
  void OnFinishMessage(size_t prompt, const v1::Finish& finish);
  void Fail(const Status& cause);
  void Complete();
  // Sends what a choice has, as an event.
  void SendChoice(size_t index, Choice* choice);
  void SendEvent(const Json& event);
  Json ChoiceJson(size_t index, Choice* choice) const;
  Json Envelope() const;
  Json UsageJson() const;
  void Extend(Json* json) const;
  void CancelAll();

  const std::shared_ptr<HttpExchange> exchange_;
  const CompletionJob job_;
  const std::string model_;
  const Tokenizer* const tokenizer_;
  const int64_t created_;
  std::vector<std::shared_ptr<HttpCall>> calls_;  // used on the thread of the HTTP server
  std::mutex mutex_;
  // Guarded by mutex_:
  std::vector<Choice> choices_;  // choice c of prompt p at p * job_.options.choices + c
  size_t running_ = 0;           // calls that have not ended
  bool started_ = false;         // the header of the stream was sent
  bool ended_ = false;           // the response is complete
  v1::Usage usage_;
  std::optional<v1::Session> session_;
  std::string resume_token_;
};

}  // namespace polysketch
